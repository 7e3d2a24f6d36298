"""Facts about the machine in words, for `ssd doctor` and reports, with the versions and commit of a run.

The engine does not use them. Facts that a system does not provide are left out. Linux provides most.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, overload

from ssd.processes.host_memory import host_memory
from ssd.version import __version__

if TYPE_CHECKING:
    from ssd.bench.manifest import Provenance
    from ssd.runtime.cores import CoreSplit

_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 bfloat16",
    "avx512_vnni": "AVX-512 int8",
    "amx_bf16": "AMX bfloat16",
    "amx_int8": "AMX int8",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "bfloat16",
    "i8mm": "int8 matrices",
}
_NAME_GPUS = (
    "import torch; [print(torch.cuda.get_device_name(each)) for each in range(torch.cuda.device_count())]"
)
_PACKAGES = ("torch", "transformers", "numpy", "safetensors")
_HYBRID = {"performance": "/sys/devices/cpu_core/cpus", "efficiency": "/sys/devices/cpu_atom/cpus"}


def processor() -> str:
    names = Counter(_cpuinfo("model name"))
    return ", ".join(names) or platform.processor() or platform.machine()


def instructions() -> str:
    """Instruction sets that matter for linear layers."""
    listed = _cpuinfo("flags")[:1] or _cpuinfo("Features")[:1]
    flags = set(listed[0].split()) if listed else set()
    return ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags) or "unknown"


def kinds_of_cores(physical: Sequence[Sequence[int]]) -> str:
    """Logical and physical cores, such as `8, on 4 physical`, and their kinds on hybrid processors."""
    parts = [f"{sum(map(len, physical))}, on {len(physical)} physical"]
    for kind, file in _HYBRID.items():
        if listed := _text(file):
            parts.append(f"{kind}: {listed}")
    return "; ".join(parts)


def core_split(split: CoreSplit, physical: Sequence[Sequence[int]], *, can_pin: bool) -> str:
    """Which cores target and draft would use in mode ssd."""
    if not split.draft:
        return "one for target and draft together: nothing is gained over mode sd"
    if not can_pin:
        return (
            f"{len(split.target)} of the target, {len(split.draft)} of the draft: numbers of threads; "
            "this system chooses the cores"
        )
    target, draft = (",".join(map(str, cores)) for cores in (split.target, split.draft))
    return f"target on {target}; draft on {draft}; {_about_siblings(split, physical)}"


def _about_siblings(split: CoreSplit, physical: Sequence[Sequence[int]]) -> str:
    if split.shares_physical_cores:
        return "both on one physical core (SMT): little is gained over mode sd"
    if any(len(siblings) > 1 for siblings in physical):
        return "one of each physical core, its sibling (SMT) stays free"
    return "no siblings (SMT) are known"


def compiler() -> str:
    """The C compiler, which Triton needs to launch kernels on a GPU."""
    named = os.environ.get("CC")
    found = named or shutil.which("gcc") or shutil.which("clang")
    if found is None or shutil.which(found) is None:
        return (
            f"{named or 'none'}: kernels cannot be launched, and steps are computed eagerly; "
            "install gcc and libc6-dev, or set CC"
        )
    return found


def driver() -> str:
    """NVIDIA's driver, and the version of CUDA that torch was built for; empty: there is no driver."""
    import torch

    found = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    if not found:
        return ""
    built_for = f"torch is built for CUDA {torch.version.cuda or 'none'}"
    if torch.cuda.is_available():
        return f"{found[0]}; {built_for}"
    return (
        f"{found[0]}, and torch sees no GPU: {built_for}; update the driver, or install a torch that fits it"
    )


def has_mps() -> bool:
    """Whether NVIDIA's Multi-Process Service runs: kernels of two processes run side by side."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    pid = _text(f"{folder}/nvidia-cuda-mps-control.pid")
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


def mps() -> str:
    if has_mps():
        return "runs: a draft that shares vLLM's GPU computes beside it"
    return (
        "does not run: a draft that shares vLLM's GPU takes turns with it; start it with "
        "nvidia-cuda-mps-control -d"
    )


def gpu_names() -> list[str]:
    """Names of the GPUs. Asks in a child process: a CUDA context in this one would take GPU memory."""
    import torch

    if not torch.cuda.device_count():
        return []
    done = subprocess.run([sys.executable, "-c", _NAME_GPUS], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def memory() -> str:
    return str(host_memory())


def free_memory() -> dict[str, int]:
    """Free bytes of every device."""
    from ssd.runtime.host import free_on_gpus

    return free_on_gpus() | {"cpu": host_memory().available}


def total_memory() -> str:
    return f"{host_memory().total / 2**30:.1f} GiB"


def reading_rate(num_threads: int) -> float:
    """Bytes per second that this many threads read from memory."""
    import torch

    from ssd.runtime import bandwidth

    torch.set_num_threads(num_threads)
    return bandwidth.reading_rate(torch.device("cpu"))


def _cpuinfo(name: str) -> list[str]:
    pairs = (line.partition(":") for line in _text("/proc/cpuinfo").splitlines())
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def provenance() -> Provenance:
    """Versions, commit and machine of a measurement."""
    from ssd.bench.manifest import Provenance

    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        versions={"ssd": __version__, "python": platform.python_version(), **_versions()},
        hardware=_hardware(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _hardware() -> dict[str, str]:
    from ssd.runtime.cores import physical_cores

    return {
        "processor": processor(),
        "cores": kinds_of_cores(physical_cores()),
        "instructions": instructions(),
        "memory": total_memory(),
        "GPUs": ", ".join(gpu_names()) or "none",
        "system": platform.platform(),
    }


def _commit() -> str | None:
    """Commit of the running source if it is a git work tree; marked if files were changed."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "--short=12", "HEAD")
    if commit is None or _git(here, "ls-files", "--error-unmatch", __file__) is None:
        return None
    return f"{commit} (changed)" if _git(here, "status", "--porcelain", "--", "..") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    return _output("git", "-C", str(folder), *arguments, failed=None)


@overload
def _output(*command: str) -> str: ...
@overload
def _output(*command: str, failed: None) -> str | None: ...
def _output(*command: str, failed: str | None = "") -> str | None:
    """What a program prints; `failed` where it cannot be run, or ends with an error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return failed
    return done.stdout.strip()
