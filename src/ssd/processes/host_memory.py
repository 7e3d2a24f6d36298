"""The host memory that this process may use, from the system and the limits of its cgroups.

Knows /proc and both versions of cgroups. Every level of a process's cgroup path may have a limit; the lowest
one applies. Missing information is ignored. Does not know models or devices.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""cgroups version 1 writes "no limit" as a number just below 2^63."""
_CACHED = ("active_file", "inactive_file")
"""Parts of a cgroup's usage that the kernel frees when memory is needed."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    total: int
    """Bytes that this process may use at most."""
    available: int
    """Bytes that it can allocate now, without swapping."""
    is_limited: bool = False
    """Whether a cgroup, such as a container's, sets the total."""

    def __str__(self) -> str:
        limit = " (the limit of its cgroup)" if self.is_limited else ""
        return f"{self.total / 2**30:.1f} GiB{limit}, {self.available / 2**30:.1f} GiB available"


def gib(count: float) -> str:
    """Formats a number of bytes in GiB."""
    return f"{count / 2**30:.2f} GiB"


def host_memory(root: Path = _ROOT) -> HostMemory:
    """`root`: the folder that contains proc and sys."""
    fields = _fields(root / "proc/meminfo")
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = fields.get("MemTotal", pages)
    available = fields.get("MemAvailable", total)
    limits = list(_limits(root))
    lowest = min((limit for limit, _ in limits), default=total)
    available = min([available, *(max(0, limit - used) for limit, used in limits)])
    return HostMemory(min(total, lowest), available, is_limited=lowest < total)


def available_on_node_of(core: int, root: Path = _ROOT) -> int | None:
    """Bytes that are available on the NUMA node of this core; None: unknown."""
    for node in sorted((root / f"sys/devices/system/cpu/cpu{core}").glob("node[0-9]*")):
        lines = _text(root / f"sys/devices/system/node/{node.name}/meminfo").splitlines()
        # Each line begins with "Node 0".
        fields = _numbers(line.split(maxsplit=2)[2] for line in lines if len(line.split()) > 3)
        parts = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
        if "MemFree" in fields:
            return sum(fields.get(name, 0) for name in parts)
    return None


def count_oom_kills(root: Path = _ROOT) -> int:
    """Number of processes that the kernel has killed since boot because memory ran out; 0 if unknown."""
    pairs = [line.split() for line in _text(root / "proc/vmstat").splitlines()]
    return next((int(number) for name, number in pairs if name == "oom_kill"), 0)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage of every level of this process's cgroups that has a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield from _limits_of_version_2(root, path)
        elif "memory" in controllers.split(","):
            yield from _limits_of_version_1(root, path)


def _limits_of_version_2(root: Path, path: str) -> Iterator[tuple[int, int]]:
    for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
        for folder in _levels(root / mount, path):
            # Above memory.high the kernel throttles a group until it hardly runs.
            numbers = [_number(folder / name) for name in ("memory.max", "memory.high")]
            limits = [each for each in numbers if each is not None]
            if limits:
                yield min(limits), _used(folder / "memory.current", folder, prefix="")


def _limits_of_version_1(root: Path, path: str) -> Iterator[tuple[int, int]]:
    for folder in _levels(root / "sys/fs/cgroup/memory", path):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            yield limit, _used(folder / "memory.usage_in_bytes", folder, prefix="total_")


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and its parents.

    In a container the path may be the host's: then only the mount point, which is the container's own group,
    exists.
    """
    names = [name for name in path.split("/") if name and name != ".."]
    for depth in range(len(names), -1, -1):
        yield mount.joinpath(*names[:depth])


def _used(usage: Path, folder: Path, *, prefix: str) -> int:
    pairs = [line.split() for line in _text(folder / "memory.stat").splitlines()]
    cached = sum(int(pair[1]) for pair in pairs if pair[0] in {prefix + name for name in _CACHED})
    return max(0, (_number(usage) or 0) - cached)


def _fields(path: Path) -> Mapping[str, int]:
    return _numbers(_text(path).splitlines())


def _numbers(lines: Iterator[str] | list[str]) -> dict[str, int]:
    """Parses lines such as `MemTotal: 24682416 kB`; returns bytes."""
    pairs = (line.partition(":") for line in lines)
    return {
        name: int(value.split()[0]) << 10 for name, _, value in pairs if value.split()[:1] and "kB" in value
    }


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
