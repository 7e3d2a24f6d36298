"""What the host counts of all sequences, as columns by row, so that a step need not look at each of them.

`RoundTimer` estimates how many steps the draft has before the next outcome, from when earlier outcomes came
and how long steps take. A tree has a fixed number of nodes: if the first steps used them all, the tree would
be broad and shallow. So the nodes of a tree are divided over the steps of a round. Knows times; no trees.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssd.moving_average import MovingAverage, moved_towards

_HOPE = 1.0
"""Tokens that a round is held to gain before there was one."""
_VALUE_WEIGHT = 0.1
"""Of what the newest round gained."""
CREDIT = 64
"""Frames that may be under way without word of their arrival, at least."""
_FRAMES_FOR_A_TOKEN = 4
"""So many for each token of lookahead, where that is more: who asks for a long one is far away
(draft/client/router.py), and more is under way."""

Longs = NDArray[np.int64]


def credit_for(lookahead: int) -> int:
    return max(CREDIT, _FRAMES_FOR_A_TOKEN * lookahead)


class Ledger:
    def __init__(self, sequences: int) -> None:
        def longs() -> Longs:
            return np.zeros(sequences + 1, np.int64)

        self.seq, self.epoch, self.n = longs(), longs(), longs()
        """By which the engine knows a sequence, and how many outcomes were applied."""
        self.length = longs()
        self.sent, self.arrived = longs(), longs()
        """FrameBatch."""
        self.credit = longs()
        """Frames that may be under way."""
        self.covered = longs()
        """Tokens for which there are blocks."""
        self.value = np.zeros(sequences + 1)
        """Tokens of late that a round gained."""
        self.is_open = np.zeros(sequences + 1, np.bool_)
        self.is_out_of_sync = np.zeros(sequences + 1, np.bool_)
        """An outcome is missing: nothing is grown until the sequence is opened again."""
        self.is_held = np.zeros(sequences + 1, np.bool_)
        """Its text is too far behind, or lacks blocks."""

    def clear(self, row: int) -> None:
        columns: dict[str, NDArray[Any]] = vars(self)
        for column in columns.values():
            column[row] = 0

    def enter(self, row: int, seq: int, epoch: int, length: int, lookahead: int) -> None:
        self.clear(row)
        self.seq[row], self.epoch[row], self.length[row] = seq, epoch, length
        self.credit[row], self.value[row], self.is_open[row] = credit_for(lookahead), _HOPE, True

    def note_outcome(self, row: int, n: int, length: int) -> None:
        gained = length - int(self.length[row]) - 1
        self.n[row], self.length[row] = n, length
        self.value[row] = moved_towards(self.value[row], gained, _VALUE_WEIGHT)

    def may_grow(self, row: int) -> bool:
        """Whether nothing but room is in the way."""
        return bool(self.sent[row] - self.arrived[row] < self.credit[row] and not self.is_out_of_sync[row])

    def live(self) -> NDArray[np.bool_]:
        """Which sequences may grow."""
        has_credit = self.sent - self.arrived < self.credit
        found: NDArray[np.bool_] = self.is_open & has_credit & ~self.is_out_of_sync & ~self.is_held
        return found


_LONGEST = 10.0
"""Seconds: more between two outcomes is a pause, and no round."""
_WEIGHT, _OWN_WEIGHT = 0.1, 0.5
"""Of the newest step or round of any sequence, and of the newest round of one sequence."""
_MOST = 1 << 10
"""Steps: no tree has as many nodes."""


class RoundTimer:
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
