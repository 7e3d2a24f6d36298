"""The end of a process group, in which one member may have to outlive the others by a moment.

Python's multiprocessing starts a process that holds nothing but names: when all who made shared memory and
semaphores are gone, it removes what they left, and ends. Killed with them, it leaves that to nobody. Where
there is no /proc a group is killed as a whole.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

_TRACKER = b"multiprocessing.resource_tracker"
_TIDY_SECONDS = 2.0
_PROCESSES = Path("/proc")


def kill_group(group: int) -> None:
    """All of it; but a member that kills its own group lives on, and so does what tidies up after it."""
    if _PROCESSES.exists():
        deadline = time.monotonic() + _TIDY_SECONDS
        while _kill_all_but_trackers(group) and time.monotonic() < deadline:
            time.sleep(0.01)
        if os.getpgrp() == group:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _kill_all_but_trackers(group: int) -> bool:
    """Whether somebody is left to be waited for: trackers too, unless they wait for this process."""
    members = _members(group) - {os.getpid()}
    others = {each for each in members if _TRACKER not in _command(each)}
    for each in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    return bool(others if os.getpgrp() == group else members)


def _members(group: int) -> set[int]:
    """Those that live: what waits to be counted is none."""
    found = set()
    for each in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _parent, its_group = (each / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.add(int(each.name))
    return found


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROCESSES / str(pid) / "cmdline").read_bytes()
    return b""
