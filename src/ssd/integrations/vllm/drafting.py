"""Pauses drafting after an error: requests run without a draft for a while, then sessions are opened again.

Each pause is twice as long as the one before; after a minute without errors the next pause is short again.
Requests that ran during an error stay without a draft. Knows when to open and close sessions, not what they
do; needs no vLLM. May be called by several threads: the sessions get one call at a time.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_STEADY_SECONDS = 60.0
"""After this long without an error, the next pause is the shortest again."""


class Drafting:
    def __init__(
        self,
        open_sessions: Callable[[], Sessions],
        meter: Meter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_sessions` connects to the draft in the background and does not wait."""
        self.sessions: Sessions | None = None
        """None during a pause."""
        self.meter = meter
        self._open_sessions, self._clock = open_sessions, clock
        self._lock = threading.RLock()
        """Not held while sessions are closed: that waits for a thread."""
        self._is_attached = True
        self._pause = 0.0
        """Length of the latest pause; 0: there was none."""
        self._resume_at, self._opened_at = 0.0, 0.0

    def resume(self) -> None:
        """Before a step: open sessions, unless they are open or a pause lasts."""
        if self.sessions is not None or self._clock() < self._resume_at:
            return
        with self._lock:
            self._open()

    def do(self, work: Callable[[Sessions], Result]) -> Result | None:
        """Call `work` if sessions are open. An error pauses drafting and does not affect requests."""
        with self._lock:
            sessions = self.sessions
            if sessions is None:
                return None
            try:
                return work(sessions)
            except Exception:
                self.sessions = None
                was_steady = self._clock() - self._opened_at >= _STEADY_SECONDS
                self._begin_pause(is_first=was_steady or not self._pause)
        # Otherwise the client would reconnect, and the draft would keep sequences that get no updates.
        _close(sessions)
        return None

    def attach(self) -> None:
        self._is_attached = True
        self.do(lambda sessions: sessions.attach())

    def detach(self) -> None:
        self._is_attached = False
        self.do(lambda sessions: sessions.detach())

    def report(self) -> dict[str, float]:
        """Counts since the start; also works during a pause."""
        return self.do(lambda sessions: sessions.report()) or self.meter.report()

    def close(self) -> None:
        """Close the sessions and never open them again."""
        with self._lock:
            sessions, self.sessions, self._resume_at = self.sessions, None, float("inf")
        if sessions is not None:
            _close(sessions)

    def _open(self) -> None:
        try:
            sessions = self._open_sessions()
        except Exception:
            self._begin_pause(is_first=not self._pause)
            return
        sessions.is_attached = self._is_attached
        self.sessions, self._opened_at = sessions, self._clock()
        self.meter.show(drafting_paused=0.0)
        if self._pause:
            logger.warning("drafting goes on")

    def _begin_pause(self, *, is_first: bool) -> None:
        """Must be called in an exception handler; logs the exception."""
        self._pause = _SHORTEST_PAUSE if is_first else min(2 * self._pause, _LONGEST_PAUSE)
        self._resume_at = self._clock() + self._pause
        self.meter.add("drafting_errors")
        self.meter.show(drafting_paused=1.0, draft_up=0.0, spec_sessions=0.0)
        logger.exception("drafting pauses for %.0f s after an error; requests go on without it", self._pause)


def _close(sessions: Sessions) -> None:
    with contextlib.suppress(Exception):
        sessions.close()
