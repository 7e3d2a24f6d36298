"""How often the target takes what the draft expects: the draft's probabilities, corrected by what happens.

The model's own probability for a guess says which guesses are surer than others, not how often
the target agrees. Each decided token tells of every guess that stood in its place whether it was
taken. The counts, by rank and by what the model said, turn one into the other; where little has
been seen the model is believed. No tensors, no tree.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ssd.draft.protocol.messages import Floats

MAX_RANKS = 8
_EDGES = (-7.0, -5.0, -4.0, -3.0, -2.2, -1.5, -1.0, -0.6, -0.3, -0.1, -0.02)
"""Borders of log-probability between the bins."""
_NUM_BINS = len(_EDGES) + 1
_TRUST = 6.0
"""The model's own word counts as so many observations."""
_MEMORY = 400.0
"""Observations in a bin beyond which the oldest fade."""
_LEAST = 1e-4
"""No chance is held to be less."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A decided token beside what the draft had expected in its place."""

    raws: Floats
    """Of the children in their order, what the model said of them."""
    taken: int | None
    """Which of them the token was, if any."""


class Calibration:
    def __init__(self) -> None:
        self._num_seen = [0.0] * (MAX_RANKS * _NUM_BINS)
        self._num_taken = [0.0] * (MAX_RANKS * _NUM_BINS)

    def learn(self, observation: Observation) -> None:
        for rank, cell in enumerate(_cells(observation.raws.tolist())):
            self._num_seen[cell] += 1
            self._num_taken[cell] += rank == observation.taken
            if self._num_seen[cell] > _MEMORY:
                self._num_seen[cell] *= 0.5
                self._num_taken[cell] *= 0.5

    def logprobs(self, raws: Floats) -> Floats:
        """Calibrated log-probabilities of the children of a node, from what the model said of them."""
        said = raws.tolist()
        rates = [
            (self._num_taken[cell] + _TRUST * math.exp(each)) / (self._num_seen[cell] + _TRUST)
            for cell, each in zip(_cells(said), said, strict=True)
        ]
        return np.array([min(0.0, math.log(max(rate, _LEAST))) for rate in rates], dtype=np.float32)


def _cells(raws: list[float]) -> list[int]:
    """Where the children of a node are counted, in their order; the last ranks share a row."""
    return [min(rank, MAX_RANKS - 1) * _NUM_BINS + bisect_left(_EDGES, raw) for rank, raw in enumerate(raws)]
