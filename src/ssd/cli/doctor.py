"""`ssd doctor`: what is installed, which devices there are, which models, and what would be used."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ssd.cli import machine
from ssd.cli.options import with_options
from ssd.integrations.vllm.fitting import installed_version
from ssd.version import __version__

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
    "datasets": "its prompts from the hub (extra: bench)",
}
_WORTH_ALL_CORES = 1.15


@with_options
def doctor(
    hf_cache: Annotated[
        str | None, typer.Option(envvar="SSD_HF_CACHE", help="Where models of the hub are kept.")
    ] = None,
) -> None:
    """Show what is installed, what this machine and the cache of models have, and what SSD will use.

    Takes a few seconds: how fast memory is read decides how fast a CPU decodes, and is measured.
    """
    console = Console()
    console.print(f"[bold]ssd {__version__}[/] on Python {platform.python_version()}, {platform.platform()}")
    console.print(_packages())
    console.print(_machine())
    console.print(_models(hf_cache))


def _packages() -> Table:
    table = Table("package", "version", "for", title="Installed", title_justify="left")
    for name, job in _PACKAGES.items():
        try:
            table.add_row(name, version(name), job)
        except PackageNotFoundError:
            table.add_row(name, "[yellow]not installed[/]", job)
    table.add_row("vllm", installed_version() or "[yellow]not installed[/]", _about_vllm())
    return table


def _about_vllm() -> str:
    """Whether it can be the target, and if not, why."""
    from ssd.cli.serve_vllm import is_installed, why_missing

    job = "ssd serve --engine vllm (pip install vllm)"
    if not is_installed():
        return job
    if reason := why_missing():
        return f"{job}: [yellow]{escape(reason)}[/]"
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        return f"{job}: [yellow]needs its V1 runner; unset VLLM_USE_V2_MODEL_RUNNER[/]"
    return f"{job}: fits, on its V1 runner; 0.32 was run with it"


def _machine() -> Table:
    import torch

    from ssd.runtime.cores import can_pin, physical_cores, share_out, usable_cores
    from ssd.runtime.host import resolve_device, resolve_dtype

    device = resolve_device("auto")
    dtype = resolve_dtype("auto", device)
    table = Table("what", "found", title="This machine", title_justify="left")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        table.add_row(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if not torch.cuda.device_count():
        table.add_row("GPUs", "none that torch can use")
    table.add_row("processor", machine.processor())
    table.add_row("CPU cores", machine.kinds_of_cores(physical_cores()))
    if device.type == "cpu":
        table.add_row("cores in mode ssd", machine.seats(share_out(), physical_cores(), can_pin=can_pin()))
    table.add_row("instructions", f"{machine.instructions()}; torch uses {_capability()}")
    table.add_row("memory", machine.memory())
    table.add_row("torch", f"{torch.__version__}, {torch.get_num_threads()} threads, {_math_library()}")
    table.add_row("weights are read at", _reading_rates(len(usable_cores())))
    table.add_row("bfloat16", _bfloat16())
    table.add_row("drafts on CPU", _drafts())
    table.add_row("will use", f"[green]{device}[/], [green]{str(dtype).removeprefix('torch.')}[/]")
    return table


def _reading_rates(num_cores: int) -> str:
    alone = machine.reading_rate(1) / 1e9
    if num_cores == 1:
        return f"{alone:.1f} GB/s"
    together = machine.reading_rate(num_cores) / 1e9
    rates = f"{alone:.1f} GB/s by one core, {together:.1f} by all {num_cores}"
    if together < _WORTH_ALL_CORES * alone:
        return rates
    # A draft takes cores from the target: where cores bring much, it has to bring more.
    return (
        f"{rates}: plain decoding on all cores gains up to {together / alone:.1f} ×, "
        "and `ssd tune` tells whether a draft gains more"
    )


def _bfloat16() -> str:
    from ssd.models.arithmetic import arithmetic

    return "by instruction" if arithmetic().bfloat16 else "bfloat16 is emulated here: float32 is used"


def _drafts() -> str:
    from ssd.models.arithmetic import arithmetic

    match arithmetic().int8_steps:
        case None:
            return "in the model's number format: int8 needs AVX-512"
        case 127:
            return "int8"
        case _:
            return "int8, weights in 7 bits: this CPU has no VNNI"


def _capability() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def _math_library() -> str:
    import torch

    built = (
        ("oneDNN", torch.backends.mkldnn),
        ("MKL", torch.backends.mkl),
        ("OpenMP", torch.backends.openmp),
    )
    return ", ".join(name for name, library in built if library.is_available()) or "plain kernels"


def _models(hf_cache: str | None) -> Table:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    shelf = hf_cache or constants.HF_HUB_CACHE
    table = Table("model", "size", title=f"Models in {shelf}", title_justify="left", min_width=40)
    try:
        repos = scan_cache_dir(shelf).repos
    except (CacheNotFound, ValueError):
        repos = frozenset()
    for repo in sorted(repos, key=lambda each: each.repo_id):
        if repo.repo_type == "model":
            table.add_row(repo.repo_id, f"{repo.size_on_disk / 1e9:.1f} GB")
    if not table.row_count:
        table.add_row("none yet", "")
    return table
