"""Limits the processor time that grammars take in the engine's thread.

All streams wait while a mask is computed. A grammar of a few kilobytes can make each mask take milliseconds,
and a request may ask for many sequences with it. So time is counted by request, over all its sequences, and
for all requests together: in total they may take a share of the elapsed time, plus a short excess. If they
take more, a request that used more than an equal part of the share is ended. Knows seconds only.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from ssd.moving_average import MovingAverage

AT_ONCE_SECONDS = 0.5
"""Allowed excess: 10,000 masks of a common schema, or some hundred of the most expensive useful ones."""
_SHARE = 0.5
"""Share of the elapsed time for all requests together. A request with a common schema takes 0.01."""
_DRAFTED_SECONDS = 0.004
"""Limit for the masks of one sequence's drafted tokens in a step: more delays others more than it saves."""
_MOST_DRAFTED = 1 << 20
_MASK_WEIGHT = 0.1
"""Weight of the newest masks in the moving average."""


class EngineTime:
    """The time that masks of all requests took beyond their share of the elapsed time.

    The share is counted for all requests together. If each request had its own, other requests' masks would
    count as elapsed time, and two expensive requests would keep each other alive for ever.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.requests: WeakSet[GrammarTime] = WeakSet()
        self.owed = 0.0
        self.paid_each = 0.0
        """Each request's equal part of the share, summed since the start."""

    def note(self, seconds: float) -> None:
        now = self._clock()
        paid = _SHARE * (now - self._looked_at)
        self._looked_at = now
        self.paid_each += paid / max(1, len(self.requests))
        self.owed = max(0.0, self.owed - paid) + seconds


class GrammarTime:
    """The time that one request's grammar takes."""

    def __init__(self, engine: EngineTime, processor: Callable[[], float] = time.thread_time) -> None:
        self._engine, self._processor = engine, processor
        self._paid_before = engine.paid_each
        self._owed = 0.0
        engine.requests.add(self)
        self.is_used_up = False
        """Set for good: no more masks are computed for the request."""
        self._mask_seconds = MovingAverage(_MASK_WEIGHT, 0.0)

    @property
    def most_drafted(self) -> int:
        """How many drafted tokens of one sequence are worth their masks."""
        seconds = self._mask_seconds.value
        return int(_DRAFTED_SECONDS / seconds) if seconds else _MOST_DRAFTED

    @contextmanager
    def counted(self, num_masks: int = 0) -> Iterator[None]:
        """Counts the time of the block, which computes `num_masks` masks."""
        began = self._processor()
        try:
            yield
        finally:
            self._note(self._processor() - began, num_masks)

    def _note(self, seconds: float, num_masks: int) -> None:
        engine = self._engine
        engine.note(seconds)
        owed = max(0.0, self._owed - (engine.paid_each - self._paid_before)) + seconds
        self._paid_before = engine.paid_each
        # While all requests together stay within their share, none owes anything.
        self._owed = min(owed, engine.owed)
        if self._owed > AT_ONCE_SECONDS:
            self.is_used_up = True
            engine.owed -= self._owed  # It computes no more masks, so others need not end because of them.
            self._owed = 0.0
        if num_masks:
            self._mask_seconds.note(seconds / num_masks)
