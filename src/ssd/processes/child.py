"""Starts, watches, restarts and ends a child process and all processes that it started.

Used for a draft, for vLLM and for a server's engine. Knows processes, signals and time. The child's standard
input is its lifeline (lifeline.py): when this process ends for any reason, the child reads the end of file
and stops. Each restart waits longer, until the child has run for a while. Only `end` blocks.

A child is reaped last, after its process group was killed: until then the system does not reuse its process
id, so no other process is killed by mistake. Popen's poll, wait and signals reap, and are not used before.
"""

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from ssd.processes.host_memory import count_oom_kills
from ssd.processes.process_group import kill_group

logger = logging.getLogger(__name__)

_FIRST_BACKOFF = 0.5
_LONGEST_BACKOFF = 30.0
_LONG_LIFE = 10.0
"""Seconds after which a child counts as healthy, which resets the backoff."""
_GRACE = 2.0
_LOOK_SECONDS = 0.01
"""Polling interval while waiting for a child to end."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class Child:
    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        first_line: bytes = b"",
        grace: float = _GRACE,
        tells_ready: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environment` is added to that of this process; `grace`: seconds to end after SIGTERM.

        `first_line` is written to its standard input: for data too long or too private for an argument.
        `tells_ready`: the caller calls note_ready once the child works; before that it is not healthy.
        """
        self.name = name
        self._command, self._environment = list(command), dict(environment or {})
        self._first_line = first_line
        self._grace, self._tells_ready, self._clock = grace, tells_ready, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._healthy_since: float | None = None
        self._ended_at: float | None = None
        self._not_before = 0.0
        self._backoff = _FIRST_BACKOFF
        self._oom_kills = 0

    @property
    def pid(self) -> int | None:
        process = self._process  # Read once: `end` may run in another thread.
        return process.pid if process else None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last process; None while it runs, or if none was started. Negative: a signal."""
        process = self._process
        code = _exit_code(process) if process else None
        if code is not None and self._ended_at is None:
            self._ended_at = self._clock()
        return code

    @property
    def ending(self) -> str:
        """How the last process ended, for messages: its exit code, and whether memory ran out."""
        code = self.exit_code
        if code is None:
            return "has ended"
        ran_out = count_oom_kills() > self._oom_kills
        return f"ended with code {code}{_about_memory(code, ran_out=ran_out)}"

    def start(self) -> bool:
        """Starts the process, in place of the one before; False during backoff, or if that one still runs."""
        now = self._clock()
        if now < self._not_before:
            return False
        if self._process is not None:
            # The caller replaces it because it does not answer, so kill it at once, and do not wait for it.
            _send(self._process, signal.SIGKILL)
            if self.exit_code is None:
                return False
            self.end()
            self._backoff = _FIRST_BACKOFF if self._lived_long() else min(2 * self._backoff, _LONGEST_BACKOFF)
        self._not_before = now + self._backoff
        self._oom_kills = count_oom_kills()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, **self._environment},
            # A new session: Ctrl-C should reach only the parent, which then ends the child.
            start_new_session=True,
        )
        self._write(self._process, self._first_line)
        self._healthy_since, self._ended_at = None if self._tells_ready else now, None
        logger.info("started %s, process %d", self.name, self._process.pid)
        return True

    def _write(self, process: "subprocess.Popen[bytes]", line: bytes) -> None:
        if process.stdin is not None and line:
            with contextlib.suppress(OSError):  # The process has ended already: see its exit code.
                process.stdin.write(line + b"\n")
                process.stdin.flush()

    def note_ready(self) -> None:
        if self._healthy_since is None:
            self._healthy_since = self._clock()

    def signal(self, number: int) -> None:
        if self._process is not None:
            _send(self._process, number)

    def _lived_long(self) -> bool:
        """Whether the last process was healthy long enough to reset the backoff."""
        if self._healthy_since is None or self._ended_at is None:
            return False
        return self._ended_at - self._healthy_since > _LONG_LIFE

    def end(self) -> None:
        """Sends SIGTERM, kills the process group after the grace period, and reaps the child."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        _send(process, signal.SIGTERM)
        if not _has_ended(process, self._grace):
            # A stopped process does not handle SIGTERM.
            _send(process, signal.SIGKILL)
        if process.returncode is None:
            # Processes that it started are in its session, and may still run.
            kill_group(process.pid)
        process.wait()


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Exit code of a process that has ended, without reaping it; negative: a signal."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll()
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.poll()  # It was reaped elsewhere.
    if ended is None:
        return None
    return int(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def _has_ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Waits for the end of the process, at most this long."""
    deadline = time.monotonic() + seconds
    while _exit_code(process) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Signals the process, unless it was reaped: then its process id may belong to another process."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _about_memory(code: int, *, ran_out: bool) -> str:
    """`ran_out`: the kernel has killed a process for lack of memory since this one was started."""
    if code not in _KILLED:
        return ""  # It ended by itself: the kernel killed another process.
    if ran_out:
        return (
            ": out of memory, and the system killed it; use a smaller model or KV cache, or raise the limit"
        )
    return ": it was killed, by a user or because memory ran out"
