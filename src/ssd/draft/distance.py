"""How far ahead a draft has to work: by how long its words are under way, in rounds of the host.

What a draft hears of an outcome, and what it says then, is under way while the host goes on. Its tree has to
reach beyond the rounds that end meanwhile. Knows times and counts; no tree, no contact.
"""

import math
from collections.abc import Callable

from ssd.moving_average import MovingAverage

_ROUND_WEIGHT = 0.1
"""Of the newest round."""
_LONGEST_ROUND = 2.0
"""Seconds: a longer time between two rounds is a pause."""
_MOST = 32
"""A tree that reaches further has no room for anything beside its likeliest path."""


class Distance:
    def __init__(self, lookahead: int, clock: Callable[[], float]) -> None:
        self._lookahead, self._clock = lookahead, clock
        self._round = MovingAverage(_ROUND_WEIGHT)
        self._last: float | None = None

    def note_round(self) -> None:
        """A round has ended."""
        now, last = self._clock(), self._last
        self._last = now
        if last is not None and 0 < now - last < _LONGEST_ROUND:
            self._round.note(now - last)

    def lookahead_with(self, answer_seconds: float) -> int:
        """What a draft is told whose answers take so long; it grows twice as deep, and one more."""
        if not self._round.value:
            return self._lookahead
        behind = answer_seconds / self._round.value
        # Answers within a round are no news when it ends: the depth as it is allows for them.
        extra = max(0.0, behind - 1) * (self._lookahead + 1) / 2
        return min(max(_MOST, self._lookahead), self._lookahead + math.ceil(extra))
