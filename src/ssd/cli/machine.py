"""Facts about the machine in words, for `ssd doctor` and reports; the engine does not use them.

Facts that a system does not provide are left out. Linux provides most.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssd.processes.host_memory import host_memory

if TYPE_CHECKING:
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
            f"{len(split.target)} of the target, {len(split.draft)} of the draft: that many threads, "
            "where they run is up to this system"
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
