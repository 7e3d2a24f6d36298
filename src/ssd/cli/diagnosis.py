"""Collects what `ssd doctor` shows: packages, this machine, downloaded models, device and number format.

Returns plain data; doctor.py shows it.
"""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ssd.cli import machine
from ssd.integrations.vllm.contract import why_untested
from ssd.integrations.vllm.fitting import installed_version
from ssd.processes.other_load import BUSY, OtherLoad
from ssd.version import DISTRIBUTION, __version__

_PACKAGES = {
    "torch": "tensors",
    "transformers": "configurations, tokenizers",
    "safetensors": "weights",
    "gguf": "GGUF weights",
    "huggingface-hub": "models by name",
    "pyzmq": "sockets between engine and draft",
    "msgspec": "the messages on them",
    "fastapi": "server (extra: server)",
    "uvicorn": "server (extra: server)",
    "prometheus-client": "metrics (extra: server)",
    "openai": "ssd chat with a server (extra: client)",
    "datasets": "prompts of ssd bench from the hub (extra: bench)",
}
Say = Callable[[str], None]
_OTHER_PROJECT = "ssd"
_WORTH_ALL_CORES = 1.15


@dataclass(frozen=True)
class InstalledPackage:
    name: str
    version: str | None
    job: str
    trouble: str = ""


@dataclass(frozen=True)
class Model:
    name: str
    bytes: int


@dataclass(frozen=True)
class Diagnosis:
    ssd: str
    python: str
    system: str
    packages: tuple[InstalledPackage, ...]
    machine: dict[str, str]
    device: str
    dtype: str
    hub_cache: str
    models: tuple[Model, ...]
    seats: Mapping[str, str]
    """Placement of the target and draft that the user named."""


def diagnose(hf_cache: str | None, seats: Mapping[str, str], say: Say) -> Diagnosis:
    """Takes a few seconds, because memory bandwidth is measured. Calls `say` with progress messages."""
    from huggingface_hub import constants

    from ssd.runtime.host import resolve_device, resolve_dtype

    device = resolve_device("auto")
    folder = hf_cache or str(constants.HF_HUB_CACHE)
    return Diagnosis(
        ssd=__version__,
        python=platform.python_version(),
        system=platform.platform(),
        packages=_packages(say),
        machine=_machine(say, on_cpus=device.type == "cpu"),
        device=str(device),
        dtype=str(resolve_dtype("auto", device)).removeprefix("torch."),
        hub_cache=folder,
        models=_models(folder),
        seats=seats,
    )


def _packages(say: Say) -> tuple[InstalledPackage, ...]:
    say("looking for packages")
    found = [InstalledPackage(name, _version(name), job) for name, job in _PACKAGES.items()]
    found.append(_vllm())
    if other := _version(_OTHER_PROJECT):
        job = f"another project, or {DISTRIBUTION} under its former name"
        found.append(InstalledPackage(_OTHER_PROJECT, other, job, f"pip uninstall {_OTHER_PROJECT}"))
    return tuple(found)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _vllm() -> InstalledPackage:
    """Whether vLLM can run the target, and if not, why."""
    from ssd.cli.serve_vllm import is_installed, model_runner, why_missing

    job = "ssd serve --engine vllm (pip install vllm)"
    number = installed_version() or None
    if not is_installed():
        return InstalledPackage("vllm", number, job)
    if reason := why_missing():
        return InstalledPackage("vllm", number, job, reason)
    runner = model_runner().upper()
    return InstalledPackage(
        "vllm", number, f"{job}: fits, on its {runner} runner", why_untested(number or "")
    )


def _machine(say: Say, *, on_cpus: bool) -> dict[str, str]:
    """Facts about the machine by topic, in display order."""
    say("looking at the machine; measuring how fast memory is read")
    import torch

    from ssd.runtime.cores import can_pin, physical_cores, share_out, usable_cores

    cores = physical_cores()
    found = {**_gpus(), "processor": machine.processor(), "CPU cores": machine.kinds_of_cores(cores)}
    if on_cpus:
        found["cores in mode ssd"] = machine.core_split(share_out(), cores, can_pin=can_pin())
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        **found,
        "instructions": f"{machine.instructions()}; torch uses {capability}",
        "memory": machine.memory(),
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads, {_math_library()}",
        "weights are read at": _reading_rates(len(usable_cores())),
        "bfloat16": _bfloat16(),
        "drafts on CPU": _drafts(),
        **({"beside llama.cpp": _beside_llamacpp()} if on_cpus else {}),
    }


def _gpus() -> dict[str, str]:
    import torch

    found = {}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    driver = {"driver": words} if (words := machine.driver()) else {}
    if not found:
        return {"GPUs": "none that torch can use", **driver}
    return {**found, **driver, "C compiler": machine.compiler(), "MPS": machine.mps()}


def _reading_rates(num_cores: int) -> str:
    """Gives no figure if other programs computed meanwhile: they read memory too."""
    load = OtherLoad()
    rates, share = _measured_rates(num_cores), load.share()
    if share is None:
        return f"{rates}; whether other programs computed meanwhile cannot be told here"
    if share > BUSY:
        return (
            f"not known: this machine was busy, other programs took {share:.0%} of the cores' time; "
            "end them and run `ssd doctor` again"
        )
    return rates


def _measured_rates(num_cores: int) -> str:
    alone = machine.reading_rate(1) / 1e9
    if num_cores == 1:
        return f"{alone:.1f} GB/s"
    together = machine.reading_rate(num_cores) / 1e9
    rates = f"{alone:.1f} GB/s by one core, {together:.1f} by all {num_cores}"
    if together < _WORTH_ALL_CORES * alone:
        return rates
    # A draft takes cores from the target, so it must gain more than those cores do.
    return (
        f"{rates}: plain decoding on all cores gains up to {together / alone:.1f} ×, "
        "and `ssd bench run` tells whether a draft gains more"
    )


def _bfloat16() -> str:
    from ssd.models.arithmetic import arithmetic

    return "by instruction" if arithmetic().bfloat16 else "bfloat16 is emulated here: float32 is used"


def _drafts() -> str:
    from ssd.models import arithmetic

    match arithmetic.arithmetic().int8_steps:
        case None:
            return "in the model's number format: int8 needs AVX-512"
        case arithmetic.ALL_INT8_STEPS:
            return "int8"
        case _:
            return "int8, weights in 7 bits: this CPU has no VNNI"


def _beside_llamacpp() -> str:
    """What was measured on another machine without a GPU (docs/performance.md); not measured here."""
    return "decoded a 4-bit file faster than this engine on two CPU cores: try it if there is no other device"


def _math_library() -> str:
    import torch

    built = (
        ("oneDNN", torch.backends.mkldnn),
        ("MKL", torch.backends.mkl),
        ("OpenMP", torch.backends.openmp),
    )
    return ", ".join(name for name, library in built if library.is_available()) or "plain kernels"


def _models(folder: str) -> tuple[Model, ...]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(folder).repos
    except (CacheNotFound, ValueError):
        return ()
    models = (Model(repo.repo_id, repo.size_on_disk) for repo in repos if repo.repo_type == "model")
    return tuple(sorted(models, key=lambda each: each.name))
