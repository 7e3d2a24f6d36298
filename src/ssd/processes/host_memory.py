"""Memory of the host, as far as this process may use it: what the system has, and the limits of its cgroups.

Knows /proc and both versions of cgroups. A limit may stand at any level of a process's cgroup path; the
lowest one counts. Does not know models or devices. What a system does not tell is left out.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number just below 2^63."""
_CACHED = ("active_file", "inactive_file")
"""Parts of a cgroup's usage that the kernel gives back when memory is needed."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    total: int
    """Bytes that this process could have at most."""
    available: int
    """Bytes that it could have now, without swapping."""
    is_limited: bool = False
    """Whether a cgroup, such as a container's, sets the total."""

    def __str__(self) -> str:
        limit = " (the limit of its cgroup)" if self.is_limited else ""
        return f"{self.total / 2**30:.1f} GiB{limit}, {self.available / 2**30:.1f} GiB available"


def gib(count: float) -> str:
    """Bytes, for a sentence."""
    return f"{count / 2**30:.2f} GiB"


def host_memory(root: Path = _ROOT) -> HostMemory:
    """`root`: where /proc and /sys are."""
    fields = _fields(root / "proc/meminfo")
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = fields.get("MemTotal", pages)
    available = fields.get("MemAvailable", total)
    limits = list(_limits(root))
    lowest = min((limit for limit, _ in limits), default=total)
    available = min([available, *(max(0, limit - used) for limit, used in limits)])
    return HostMemory(min(total, lowest), available, is_limited=lowest < total)


def available_on_node_of(core: int, root: Path = _ROOT) -> int | None:
    """Bytes that could be had on the NUMA node of this core; None: the system does not tell."""
    for node in sorted((root / f"sys/devices/system/cpu/cpu{core}").glob("node[0-9]*")):
        lines = _text(root / f"sys/devices/system/node/{node.name}/meminfo").splitlines()
        # Each begins with "Node 0".
        fields = _numbers(line.split(maxsplit=2)[2] for line in lines if len(line.split()) > 3)
        parts = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
        if "MemFree" in fields:
            return sum(fields.get(name, 0) for name in parts)
    return None


def count_oom_kills(root: Path = _ROOT) -> int:
    """How many processes the kernel has killed since it started, because memory ran out; 0: not told."""
    found = [line.split() for line in _text(root / "proc/vmstat").splitlines()]
    return next((int(number) for name, number in found if name == "oom_kill"), 0)


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
            # Above memory.high a group is slowed until it hardly runs.
            said = [_number(folder / name) for name in ("memory.max", "memory.high")]
            limits = [each for each in said if each is not None]
            if limits:
                yield min(limits), _used(folder / "memory.current", folder, prefix="")


def _limits_of_version_1(root: Path, path: str) -> Iterator[tuple[int, int]]:
    for folder in _levels(root / "sys/fs/cgroup/memory", path):
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            yield limit, _used(folder / "memory.usage_in_bytes", folder, prefix="total_")


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and those above it.

    In a container the path may be the host's: then only the mounted top, which is its own, exists.
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
    """Of lines such as `MemTotal: 24682416 kB`, in bytes."""
    pairs = (line.partition(":") for line in lines)
    return {
        name: int(value.split()[0]) << 10 for name, _, value in pairs if value.split()[:1] and "kB" in value
    }


def _number(path: Path) -> int | None:
    said = _text(path)
    return int(said) if said.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
