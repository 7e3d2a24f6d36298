"""Processor time that grammars take of the engine's thread, and which request has taken too much of it.

All streams wait while a mask is made. A grammar of a few kilobytes can make each mask take milliseconds, and
a request may ask for many texts with it. So the time of all texts of a request is counted together, and that
of all requests too: together they may take a share of the time that passes, and a little at once. Where they
take more, whoever has more than an equal part of that share ends. Knows seconds only.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from ssd.moving_average import MovingAverage

AT_ONCE_SECONDS = 0.5
"""Ten thousand masks of a common schema, or some hundred of the dearest that are of use."""
_SHARE = 0.5
"""Of the time that passes, for all requests together. A request with a common schema takes a hundredth."""
_DRAFTED_SECONDS = 0.004
"""For the masks of one text's drafted tokens in a step: more would cost other texts more than they save."""
_MOST_DRAFTED = 1 << 20
_MASK_WEIGHT = 0.1
"""Of the newest masks, in the average time of a mask."""


class EngineTime:
    """What the masks of all requests took, beyond their share of the time that passed.

    Were each request's debt paid by the time that passes, masks of others would be part of that time: two
    dear requests would let each other go on for ever.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.requests: WeakSet[GrammarTime] = WeakSet()
        self.owed = 0.0
        self.paid_each = 0.0
        """An equal part, for each request, of the share of the time since the start."""

    def note(self, seconds: float) -> None:
        now = self._clock()
        paid = _SHARE * (now - self._looked_at)
        self._looked_at = now
        self.paid_each += paid / max(1, len(self.requests))
        self.owed = max(0.0, self.owed - paid) + seconds


class GrammarTime:
    """Of one request."""

    def __init__(self, engine: EngineTime, processor: Callable[[], float] = time.thread_time) -> None:
        self._engine, self._processor = engine, processor
        self._paid_before = engine.paid_each
        self._owed = 0.0
        engine.requests.add(self)
        self.is_used_up = False
        """For good: no mask is made for any text of the request any more."""
        self._mask_seconds = MovingAverage(_MASK_WEIGHT, 0.0)

    @property
    def most_drafted(self) -> int:
        """How many drafted tokens of one text are worth their masks."""
        seconds = self._mask_seconds.value
        return int(_DRAFTED_SECONDS / seconds) if seconds else _MOST_DRAFTED

    @contextmanager
    def counted(self, num_masks: int = 0) -> Iterator[None]:
        """What the block takes, to make so many masks."""
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
        # While all together keep to their share, nobody owes anything.
        self._owed = min(owed, engine.owed)
        if self._owed > AT_ONCE_SECONDS:
            self.is_used_up = True
            engine.owed -= self._owed  # Its masks are no more: others need not end for them.
            self._owed = 0.0
        if num_masks:
            self._mask_seconds.note(seconds / num_masks)
