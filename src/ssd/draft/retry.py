"""When a draft that was lost is tried again: soon at first, then ever more seldom, never longer than a bound.

Each delay is drawn at random between nothing and its length, so that the targets of a draft that comes back
do not all come at once. Knows a clock and a source of random numbers; no drafts.
"""

from collections.abc import Callable

FIRST_DELAY, LONGEST_DELAY = 0.25, 10.0
"""Seconds; each failure doubles the delay."""
_LONG_LIFE = 10.0
"""Seconds after which a contact counts as healthy: its end is then news, not a habit."""


class Retry:
    def __init__(self, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        """`draw`: the next random number from 0 to 1."""
        self._clock, self._draw = clock, draw
        self._not_before = 0.0
        self._delay = FIRST_DELAY

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._not_before

    def note_failure(self, lived: float = 0.0) -> None:
        """A contact was lost that had worked for so many seconds, or could not be made."""
        if lived >= _LONG_LIFE:
            self._delay = FIRST_DELAY
        self._wait(self._draw() * self._delay)
        self._delay = min(2 * self._delay, LONGEST_DELAY)

    def wait_about(self, seconds: float) -> None:
        """So long, or up to a fifth less: what is known not to work soon is tried again at another time."""
        self._wait(seconds * (1 - 0.2 * self._draw()))

    def _wait(self, seconds: float) -> None:
        self._not_before = self._clock() + seconds
