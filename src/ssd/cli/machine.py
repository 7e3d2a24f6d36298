"""Facts about the machine, as the system tells them: for people to read, not for the engine to use.

Whatever a system does not tell is left out. Linux tells most.
"""

import os
import platform
import time
from collections import Counter
from pathlib import Path

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
_HYBRID = {"performance": "/sys/devices/cpu_core/cpus", "efficiency": "/sys/devices/cpu_atom/cpus"}
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_SIDE = 8192


def processor() -> str:
    names = Counter(_cpuinfo("model name"))
    return ", ".join(names) or platform.processor() or platform.machine()


def instructions() -> str:
    """Those that matter for linear layers."""
    listed = _cpuinfo("flags")[:1] or _cpuinfo("Features")[:1]
    flags = set(listed[0].split()) if listed else set()
    return ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags) or "unknown"


def kinds_of_cores(cores: list[int]) -> str:
    """`8: 4 physical with 2 threads each`, and which are fast where they differ."""
    physical = {_text(_TOPOLOGY.format(core)) or str(core) for core in cores}
    parts = [f"{len(cores)}, on {len(physical)} physical"]
    for kind, file in _HYBRID.items():
        if listed := _text(file):
            parts.append(f"{kind}: {listed}")
    return "; ".join(parts)


def memory() -> str:
    fields = dict(line.split(":", 1) for line in _text("/proc/meminfo").splitlines() if ":" in line)
    if "MemTotal" in fields:
        total, free = (int(fields[name].split()[0]) / 2**20 for name in ("MemTotal", "MemAvailable"))
        return f"{total:.1f} GiB, {free:.1f} GiB available"
    return total_memory()


def available_memory() -> int:
    """Bytes that could be had without swapping; all there are, where the system does not tell."""
    fields = dict(line.split(":", 1) for line in _text("/proc/meminfo").splitlines() if ":" in line)
    if "MemAvailable" in fields:
        return int(fields["MemAvailable"].split()[0]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def total_memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{total:.1f} GiB"


def reading_rate(num_threads: int, seconds: float = 1.0) -> float:
    """Bytes a second at which a product of matrix and vector reads its matrix.

    Decoding on a CPU does little else, so this over a model's size is about the most tokens a second.
    """
    import torch

    torch.set_num_threads(num_threads)
    matrix, vector = torch.ones(_SIDE, _SIDE), torch.ones(_SIDE)
    best, ends = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < ends:
        started = time.perf_counter()
        matrix @ vector
        best = min(best, time.perf_counter() - started)
    return matrix.nbytes / best


def _cpuinfo(name: str) -> list[str]:
    pairs = (line.partition(":") for line in _text("/proc/cpuinfo").splitlines())
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
