"""Processor time that other programs took on our cores while something was measured.

Knows what Linux says of its processors and processes. Does not know what was measured. Where there is no
/proc, as on macOS, the answer is None: it cannot be told whether the machine was busy.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

BUSY = 0.1
"""Share of our cores' time from which a measurement is said to be disturbed."""

_PROC = Path("/proc")
_IDLE, _WAITING = 3, 4
"""Places in a line of /proc/stat: time in which a core did nothing, and waited for a disk."""
_NUM_KINDS = 8
"""User, nice, system, idle, waiting, two kinds of interrupts, stolen; guests are part of user and nice."""
_PARENT, _TIMES = 1, slice(11, 15)
"""Places in /proc/PID/stat behind the name: the parent, and times with those of children that have ended."""


@dataclass(frozen=True, slots=True)
class _Ticks:
    passed: int
    """Of all our cores together."""
    busy: int
    ours: int
    """Of this process and all below it."""


class OtherLoad:
    """Counts from the moment it is made: `load = OtherLoad(); measure(); load.share()`."""

    def __init__(self, cores: Collection[int] = ()) -> None:
        """`cores`: which to watch; empty: all that this process may use."""
        self._cores = frozenset(cores or _usable_cores())
        self._before = _ticks(self._cores)

    def share(self) -> float | None:
        """The share that others took, programs and virtual machines, of the time of all our cores together.

        It may hide one busy core: on 64 cores, a program that keeps one of them busy takes 1.6 %, below
        `BUSY`, though threads that wait for each other are all as slow as that core. The time of our own
        processes is known for all cores together only, so a share of each core cannot be told.
        """
        before, now = self._before, _ticks(self._cores)
        if before is None or now is None or now.passed <= before.passed:
            return None
        others = (now.busy - before.busy) - (now.ours - before.ours)
        return max(0.0, others / (now.passed - before.passed))


def _usable_cores() -> Collection[int]:
    # Where there is no /proc, there may be no affinity either, and nothing is counted.
    return os.sched_getaffinity(os.getpid()) if hasattr(os, "sched_getaffinity") else ()


def _ticks(cores: Collection[int]) -> _Ticks | None:
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    ours = {f"cpu{core}" for core in cores}
    times = [
        list(map(int, words[1 : 1 + _NUM_KINDS])) for line in lines if (words := line.split())[0] in ours
    ]
    idle = sum(core[_IDLE] + core[_WAITING] for core in times)
    passed = sum(map(sum, times))
    return _Ticks(passed, passed - idle, _ticks_of_our_processes())


def _ticks_of_our_processes() -> int:
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            # The name stands in brackets and may hold anything.
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        number = int(folder.name)
        children.setdefault(int(words[_PARENT]), []).append(number)
        times[number] = sum(map(int, words[_TIMES]))
    total, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        total += times.get(number, 0)
        left += children.get(number, [])
    return total
