"""Starts a draft process, watches it, and starts it again when it ends.

Knows processes and lines. The draft hangs on a lifeline, its standard input: when the engine ends,
however it ends, the draft reads the end of it and stops. Restarts wait longer each time, until the
draft has lived for a while. Nothing here blocks but `close`.
"""

import contextlib
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ssd.draft.connection import Connection, LineState
from ssd.draft.messages import Hello
from ssd.draft.transport import Keys, ZmqEngineLink, private_address

logger = logging.getLogger(__name__)

_FIRST_BACKOFF = 0.5
_LONGEST_BACKOFF = 30.0
_LONG_LIFE = 10.0
"""Seconds after which a draft counts as healthy: its end is then news, not a habit."""
_GRACE = 2.0
START_SECONDS = 600.0
"""A large draft may take minutes to load; one that ends instead is noticed at once."""


class AddressSource:
    """Lines to a draft that someone else runs."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        timeout: float,
        keys: Keys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._hello, self._timeout, self._keys = address, hello, timeout, keys
        self._clock = clock
        self._not_before = 0.0

    def connect(self) -> Connection | None:
        if self._clock() < self._not_before:
            return None
        self._not_before = self._clock() + _FIRST_BACKOFF
        link = ZmqEngineLink(self._address, self._keys)
        return Connection(
            link, self._hello, self._clock, timeout=self._timeout, greeting_timeout=self._timeout
        )

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


class SupervisedSource:
    """Lines to a draft process of our own."""

    def __init__(
        self,
        arguments: Sequence[str],
        hello: Hello,
        *,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arguments` are those of `ssd draft`, without --listen."""
        self._arguments = list(arguments)
        self._hello, self._timeout, self._clock = hello, timeout, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._line: Connection | None = None
        self._ready_at: float | None = None
        self._not_before = 0.0
        self._backoff = _FIRST_BACKOFF

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def connect(self) -> Connection | None:
        now = self._clock()
        if now < self._not_before:
            return None
        if self._process is not None:
            # It did not answer, so it is not asked; and what does not end at once is waited for later.
            self._process.kill()
            if self._process.poll() is None:
                return None
            self._end_process()
            lived_long = self._ready_at is not None and now - self._ready_at > _LONG_LIFE
            self._backoff = _FIRST_BACKOFF if lived_long else min(2 * self._backoff, _LONGEST_BACKOFF)
        self._not_before = now + self._backoff
        self._start()
        link = ZmqEngineLink(self._address)
        self._line = Connection(
            link, self._hello, self._clock, timeout=self._timeout, greeting_timeout=START_SECONDS
        )
        return self._line

    def is_broken(self) -> str:
        if self._ready_at is None and self._line is not None and self._line.state is LineState.READY:
            self._ready_at = self._clock()
        code = self._process.poll() if self._process else None
        if code is None:
            return ""
        still_loading = self._line is not None and self._line.state is LineState.GREETING
        return f"the draft ended with code {code}{' while loading' if still_loading else ''}"

    def close(self) -> None:
        self._end_process()

    def _start(self) -> None:
        self._address = private_address()
        command = [
            sys.executable,
            "-m",
            "ssd",
            "draft",
            *self._arguments,
            "--listen",
            self._address,
            "--lifeline",
        ]
        # In a session of its own: Ctrl-C is for the engine, which ends the draft in its own time.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._ready_at = None
        logger.info("started a draft, process %d", self._process.pid)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.terminate()
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            # A stopped process does not hear the polite signal.
            process.kill()
            process.wait()
        shutil.rmtree(Path(self._address.removeprefix("ipc://")).parent, ignore_errors=True)
