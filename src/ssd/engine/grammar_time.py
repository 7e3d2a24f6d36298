"""Processor time that the grammar of one request takes of the engine's thread, and when that is too much.

All streams wait while a mask is made. A grammar of a few kilobytes can make each mask take milliseconds, and
a request may ask for many texts with it. So the time of all texts of a request is counted together: it may
take a share of the time that passes, and a little at once. Knows seconds only.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE_SECONDS = 0.5
"""Ten thousand masks of a common schema, or some hundred of the dearest that are of use."""
_SHARE = 0.5
"""Of the time that passes. Common schemas take a hundredth."""
_DRAFTED_SECONDS = 0.004
"""For the masks of one text's drafted tokens in a step: more would cost other texts more than they save."""
_MOST_DRAFTED = 1 << 20
_NEW_WEIGHT = 0.1


class GrammarTime:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._processor = clock, processor
        self._looked_at = clock()
        self._owed = 0.0
        self.is_used_up = False
        """For good: no mask is made for any text of the request any more."""
        self._mask_seconds = 0.0
        """What a mask takes, of the latest."""

    @property
    def most_drafted(self) -> int:
        """How many drafted tokens of one text are worth their masks."""
        return int(_DRAFTED_SECONDS / self._mask_seconds) if self._mask_seconds else _MOST_DRAFTED

    @contextmanager
    def counted(self, num_masks: int = 0) -> Iterator[None]:
        """What the block takes, to make so many masks."""
        began = self._processor()
        try:
            yield
        finally:
            self._note(self._processor() - began, num_masks)

    def _note(self, seconds: float, num_masks: int) -> None:
        now = self._clock()
        self._owed = max(0.0, self._owed - _SHARE * (now - self._looked_at)) + seconds
        self._looked_at = now
        self.is_used_up |= self._owed > AT_ONCE_SECONDS
        if num_masks:
            self._mask_seconds += _NEW_WEIGHT * (seconds / num_masks - self._mask_seconds)
