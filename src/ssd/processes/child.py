"""A child process, whatever it runs: started, watched, started again, and ended with all that it started.

An engine's draft, vLLM, a server's engine: all are children. Knows processes, signals and time. The child
hangs on a lifeline, its standard input (lifeline.py): when this process ends, however it ends, the child
reads the end of it and stops. Restarts wait longer each time, until the child has lived for a while.
Nothing here blocks but `end`.

A child is reaped last, after its process group was killed: until then the system gives its number to nobody
else, so that no stranger is killed. Popen's own poll, wait and signals reap, and are avoided before that.
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
"""Seconds after which a child counts as healthy: its end is then news, not a habit."""
_GRACE = 2.0
_LOOK_SECONDS = 0.01
"""Between two looks whether a child that was asked to end has ended."""
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
        """`environment` is added to that of this process; `grace` are seconds to end when asked to.

        `first_line` is what it reads first of its lifeline: what is too long or too private for an argument.
        `tells_ready`: someone calls note_ready once it works; getting there is not a long life then.
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
        process = self._process  # Read once: `end` may be at work in another thread.
        return process.pid if process else None

    @property
    def exit_code(self) -> int | None:
        """Of the last one that ran; None while it runs, or if none was started. Negative: the signal."""
        process = self._process
        code = _exit_code(process) if process else None
        if code is not None and self._ended_at is None:
            self._ended_at = self._clock()
        return code

    @property
    def ending(self) -> str:
        """How the last one ended, in words: its exit code, and whether memory ran out."""
        code = self.exit_code
        if code is None:
            return "has ended"
        ran_out = count_oom_kills() > self._oom_kills
        return f"ended with code {code}{_about_memory(code, ran_out=ran_out)}"

    def start(self) -> bool:
        """Starts it, in place of the one before; False while it is too early, or that one still there."""
        now = self._clock()
        if now < self._not_before:
            return False
        if self._process is not None:
            # It did not answer, so it is not asked; and what does not end at once is waited for later.
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
            # In a session of its own: Ctrl-C is for its parent, which ends it in its own time.
            start_new_session=True,
        )
        self._tell(self._process, self._first_line)
        self._healthy_since, self._ended_at = None if self._tells_ready else now, None
        logger.info("started %s, process %d", self.name, self._process.pid)
        return True

    def _tell(self, process: "subprocess.Popen[bytes]", line: bytes) -> None:
        if process.stdin is not None and line:
            with contextlib.suppress(OSError):  # It is gone already: its exit code tells more.
                process.stdin.write(line + b"\n")
                process.stdin.flush()

    def note_ready(self) -> None:
        if self._healthy_since is None:
            self._healthy_since = self._clock()

    def signal(self, number: int) -> None:
        if self._process is not None:
            _send(self._process, number)

    def _lived_long(self) -> bool:
        """What has ended does not live on while it is waited for."""
        if self._healthy_since is None or self._ended_at is None:
            return False
        return self._ended_at - self._healthy_since > _LONG_LIFE

    def end(self) -> None:
        """Asks it to end, does not wait for ever, and leaves nothing of it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        _send(process, signal.SIGTERM)
        if not _has_ended(process, self._grace):
            # A stopped process does not hear the polite signal.
            _send(process, signal.SIGKILL)
        if process.returncode is None:
            # What it started is in its session, and may have outlived it.
            kill_group(process.pid)
        process.wait()


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Of a process that has ended, which is not reaped by this; negative: the signal."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll()
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.poll()  # Someone else has reaped it.
    if ended is None:
        return None
    return int(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def _has_ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Waits for it, so long at most."""
    deadline = time.monotonic() + seconds
    while _exit_code(process) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """To itself only, unless it is reaped: then its number may be someone else's."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _about_memory(code: int, *, ran_out: bool) -> str:
    """`ran_out`: the kernel has killed some process for memory since this one was started."""
    if code not in _KILLED:
        return ""  # It ended by itself: what was killed is another process of this host.
    if ran_out:
        return (
            ": out of memory, and the system killed it; use a smaller model or KV cache, or raise the limit"
        )
    return ": it was killed; if nobody did that, it was out of memory"
