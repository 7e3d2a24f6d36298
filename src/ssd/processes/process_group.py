"""Kills a process group, except multiprocessing's resource tracker, which must end last.

The tracker removes shared memory and semaphores after the processes that made them have ended, and then ends
itself. If it were killed with the others, these would leak. Without /proc the whole group is killed at once.
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
    """Kills all members, trackers last. If the caller is a member, the caller and its tracker survive."""
    if _PROCESSES.exists():
        deadline = time.monotonic() + _TIDY_SECONDS
        while _kill_all_but_trackers(group) and time.monotonic() < deadline:
            time.sleep(0.01)
        if os.getpgrp() == group:
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _kill_all_but_trackers(group: int) -> bool:
    """Whether to wait for members: also for trackers, unless they wait for this process."""
    members = _members(group) - {os.getpid()}
    others = {each for each in members if _TRACKER not in _command(each)}
    for each in others:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    return bool(others if os.getpgrp() == group else members)


def _members(group: int) -> set[int]:
    """Process ids of the group's members, without zombies."""
    members = set()
    for each in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _parent, its_group = (each / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                members.add(int(each.name))
    return members


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROCESSES / str(pid) / "cmdline").read_bytes()
    return b""
