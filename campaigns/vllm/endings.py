"""The server ended at any moment, while it starts or while it streams: nothing of it may be left.

What was seen is a line of plain values; `wrong` says in words what should not have been.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.served import Served, is_healthy, start
from benchmarks.streams import Streams

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
START_SECONDS = 30.0
"""A start takes a little longer, with the draft's, on two cores of which nobody else has any."""
_END_SECONDS = 60.0
_TOKENS = 128
"""More than can be finished while it drains: streams are cut too."""


def end_while_starting(server: Served, number: int, seconds: float) -> dict[str, Any]:
    """Ends the server by signal `number`, `seconds` after its start."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        server.look()
        time.sleep(0.05)
    return {"started_for_seconds": round(seconds, 1), **_end(server, number)}


def end_while_serving(server: Served, number: int, seconds: float) -> dict[str, Any]:
    """Ends the server by signal `number`, `seconds` after eight clients began to stream."""
    streams = Streams(server, num_tokens=_TOKENS)
    time.sleep(seconds)
    found = _end(server, number)
    # Those who were served when it ended have nothing to expect.
    return {**found, "requests": len(streams.stop().texts)}


@contextlib.contextmanager
def started(place: Path, models: tuple[Path, Path]) -> Iterator[Served]:
    """Also when this program is ended, the server does not live on."""
    server = start(place, *models)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def _end(server: Served, number: int) -> dict[str, Any]:
    was_healthy = is_healthy(server)
    server.look_at_memory()
    server.look()
    server.process.send_signal(number)
    at, code = time.monotonic(), None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = server.process.wait(_END_SECONDS)
    ended_after = time.monotonic() - at
    left = server.until_nothing_is_left()
    gone_after = time.monotonic() - at
    wrong = [f"left: {each}" for each in left]
    # One that is ended before it has started anything ends as Python does.
    if code != (-number if number == signal.SIGKILL else 0) and (server.seen or code is None):
        wrong.append(f"it ended with code {code}: {server.said[-500:]}")
    return {
        "signal": signal.Signals(number).name,
        "healthy": was_healthy,
        "processes": len(server.seen),
        "ended_after_seconds": round(ended_after, 2),
        "gone_after_seconds": round(gone_after, 2),
        "wrong": wrong,
    }
