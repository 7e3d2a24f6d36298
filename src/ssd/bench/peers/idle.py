"""Whether a worker that waits really rests: on shared cores a spinning one would slow whoever is measured.

Reads Linux's /proc; elsewhere nothing is known and nothing is said.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 2.0


def idle_cores(sessions: Mapping[str, int]) -> dict[str, float]:
    """By name, how many cores the processes of a session keep busy while nobody asks them anything."""
    before, started = {name: _ticks(session) for name, session in sessions.items()}, time.monotonic()
    time.sleep(_SECONDS)
    scale = os.sysconf("SC_CLK_TCK") * (time.monotonic() - started)
    return {
        name: round(max(0, _ticks(session) - before[name]) / scale, 3) for name, session in sessions.items()
    }


def _ticks(session: int) -> int:
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; what follows it is numbers.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total
