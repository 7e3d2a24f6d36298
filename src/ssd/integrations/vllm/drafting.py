"""Drafting that outlives its own errors: after one, requests run plainly for a while, then sessions reopen.

Each pause is twice as long as the one before; once drafting has worked for a minute, the next one is short
again. Requests that were under way stay plain to their end. Knows when to open and close sessions, not what
they do; needs no vLLM.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_STEADY_SECONDS = 60.0
"""After so long without an error, an error is taken for a first one."""


class Drafting:
    def __init__(
        self,
        open_sessions: Callable[[], Sessions],
        meter: Meter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_sessions` looks for the draft in the background, and waits for nothing."""
        self.sessions: Sessions | None = None
        """None during a pause."""
        self.meter = meter
        self._open_sessions, self._clock = open_sessions, clock
        self._is_attached = True
        self._pause = 0.0
        """The latest; 0: there was none yet."""
        self._resume_at, self._opened_at = 0.0, 0.0

    def resume(self) -> None:
        """Before a step: opens sessions, unless there are some or a pause is not over."""
        if self.sessions is not None or self._clock() < self._resume_at:
            return
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

    def do(self, work: Callable[[Sessions], Result]) -> Result | None:
        """Does it where there are sessions; an error pauses drafting, and no request notices."""
        sessions = self.sessions
        if sessions is None:
            return None
        try:
            return work(sessions)
        except Exception:
            self.sessions = None
            # Or the line would mend itself, and the draft follow texts that nobody tells it.
            with contextlib.suppress(Exception):
                sessions.close()
            was_steady = self._clock() - self._opened_at >= _STEADY_SECONDS
            self._begin_pause(is_first=was_steady or not self._pause)
            return None

    def attach(self) -> None:
        self._is_attached = True
        self.do(lambda sessions: sessions.attach())

    def detach(self) -> None:
        self._is_attached = False
        self.do(lambda sessions: sessions.detach())

    def report(self) -> dict[str, float]:
        """Counts since the start, also during a pause."""
        return self.do(lambda sessions: sessions.report()) or self.meter.report()

    def close(self) -> None:
        """For good."""
        self.do(lambda sessions: sessions.close())
        self.sessions, self._resume_at = None, float("inf")

    def _begin_pause(self, *, is_first: bool) -> None:
        """Within an exception's handler, which is logged."""
        self._pause = _SHORTEST_PAUSE if is_first else min(2 * self._pause, _LONGEST_PAUSE)
        self._resume_at = self._clock() + self._pause
        self.meter.add("drafting_errors")
        self.meter.show(drafting_paused=1.0, draft_up=0.0, spec_sessions=0.0)
        logger.exception("drafting pauses for %.0f s after an error; requests go on without it", self._pause)
