"""Whether a worker that waits without being stopped really rests: a spinning one would slow the others.

Reads Linux's /proc; elsewhere nothing is known and nothing is said.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

_PROCESSES = Path("/proc")
_SECONDS = 2.0


def idle_cores(pids: Mapping[str, int]) -> dict[str, float]:
    """By name, how many cores a process and all below it keep busy while nobody asks them anything."""
    known = {name: pid for name, pid in pids.items() if (_PROCESSES / str(pid)).exists()}
    if not known:
        return {}
    before, started = {name: _ticks(pid) for name, pid in known.items()}, time.monotonic()
    time.sleep(_SECONDS)
    scale = os.sysconf("SC_CLK_TCK") * (time.monotonic() - started)
    return {name: round(max(0, _ticks(pid) - before[name]) / scale, 3) for name, pid in known.items()}


def _ticks(pid: int) -> int:
    """Not by session: a draft has one of its own."""
    ticks: dict[int, int] = {}
    children = defaultdict[int, list[int]](list)
    for process, parent, used in _processes():
        ticks[process] = used
        children[parent].append(process)
    total, left = 0, [pid]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children[process]
    return total


def _processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and clock ticks of each."""
    for stat in _PROCESSES.glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; what follows it is numbers.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(stat.parent.name), int(fields[1]), int(fields[11]) + int(fields[12])
