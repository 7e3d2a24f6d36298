"""What the host counts of all sequences, as columns by row: a step looks at none of them by itself."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssd.moving_average import moved_towards

_HOPE = 1.0
"""Tokens that a round is held to gain before there was one."""
_VALUE_WEIGHT = 0.1
"""Of what the newest round gained."""
CREDIT = 64
"""Frames that may be under way without word of their arrival, at least."""
_FRAMES_FOR_A_TOKEN = 4
"""So many for each token of lookahead, where that is more: who asks for a long one is far away
(draft/distance.py), and more is under way."""

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
        """Frames."""
        self.credit = longs()
        """Frames that may be under way."""
        self.covered = longs()
        """Tokens for which there are blocks."""
        self.value = np.zeros(sequences + 1)
        """Tokens of late that a round gained."""
        self.is_open = np.zeros(sequences + 1, np.bool_)
        self.is_torn = np.zeros(sequences + 1, np.bool_)
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
        return bool(self.sent[row] - self.arrived[row] < self.credit[row] and not self.is_torn[row])

    def live(self) -> NDArray[np.bool_]:
        """Which sequences may grow."""
        has_credit = self.sent - self.arrived < self.credit
        found: NDArray[np.bool_] = self.is_open & has_credit & ~self.is_torn & ~self.is_held
        return found
