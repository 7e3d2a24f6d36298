"""How many steps a draft has before the next outcome: by when earlier ones came, and how long steps take.

A tree has room for so many nodes, and a step may be wide. Whoever grows all that is known in the first steps
has none left for what only those bring to light: the tree is broad and shallow. So its room is for all the
steps of a round. Knows times; no trees.
"""

from collections.abc import Callable

import numpy as np

from ssd.draft.forest.ledger import Longs
from ssd.moving_average import MovingAverage, moved_towards

_LONGEST = 10.0
"""Seconds: more between two outcomes is a pause, and no round."""
_WEIGHT, _OWN_WEIGHT = 0.1, 0.5
"""Of the newest step or round of any sequence, and of the newest round of one sequence."""
_MOST = 1 << 10
"""Steps: no tree has as many nodes."""


class Rounds:
    def __init__(self, sequences: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = np.zeros(sequences + 1)
        """When each sequence's latest outcome came."""
        self._seconds = np.zeros(sequences + 1)
        """Of its rounds, the latest most; 0: not known."""
        self._has_begun = np.zeros(sequences + 1, np.bool_)
        """An outcome has come; before that the target reads the prompt."""
        self._usual, self._step = MovingAverage(_WEIGHT), MovingAverage(_WEIGHT)

    def enter(self, row: int) -> None:
        """A new sequence: its rounds are taken to be as others' are."""
        self._since[row], self._seconds[row] = self._clock(), self._usual.value
        self._has_begun[row] = False

    def note_outcome(self, row: int) -> None:
        now = self._clock()
        seconds = now - self._since[row]
        if self._has_begun[row] and seconds < self._step.value / 4:
            return  # What must follow is told right behind an outcome: that is no round.
        if self._has_begun[row] and 0 < seconds < _LONGEST:
            self._usual.note(seconds)
            known = self._seconds[row]
            self._seconds[row] = moved_towards(known, seconds, _OWN_WEIGHT) if known else seconds
        self._since[row], self._has_begun[row] = now, True

    def note_step(self, seconds: float) -> None:
        self._step.note(seconds)

    def steps_left(self) -> Longs:
        """Of each sequence, the one that begins among them; 1 where nothing is known."""
        left = self._seconds - (self._clock() - self._since)
        steps = np.ceil(left / (self._step.value or np.inf))
        return np.clip(steps, 1, _MOST).astype(np.int64)
