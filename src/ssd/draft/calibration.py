"""How often the target takes what the draft expects: the draft's probabilities, corrected by what happens.

The model's own probability for a guess says which guesses are surer than others, not how often
the target agrees. Each decided token tells of every guess that stood in its place whether it was
taken. The counts, by rank and by what the model said, turn one into the other; where little has
been seen the model is believed. No tensors, no tree.
"""

import math

import numpy as np

from ssd.draft.session import Observation
from ssd.draft.tree import Floats

MAX_RANKS = 8
_EDGES = np.array([-7.0, -5.0, -4.0, -3.0, -2.2, -1.5, -1.0, -0.6, -0.3, -0.1, -0.02], dtype=np.float32)
"""Borders of log-probability between the bins."""
_TRUST = 6.0
"""The model's own word counts as so many observations."""
_MEMORY = 400.0
"""Observations in a bin beyond which the oldest fade."""
_LEAST = math.log(1e-4)


class Calibration:
    def __init__(self) -> None:
        self._num_seen = np.zeros((MAX_RANKS, len(_EDGES) + 1))
        self._num_taken = np.zeros_like(self._num_seen)

    def learn(self, observation: Observation) -> None:
        ranks, bins = self._cells(observation.raws)
        np.add.at(self._num_seen, (ranks, bins), 1)  # the last ranks share a cell
        if observation.taken is not None:
            self._num_taken[ranks[observation.taken], bins[observation.taken]] += 1
        faded = self._num_seen > _MEMORY
        self._num_seen[faded] *= 0.5
        self._num_taken[faded] *= 0.5

    def logprobs(self, raws: Floats) -> Floats:
        """Calibrated log-probabilities of the children of a node, from what the model said of them."""
        cells = self._cells(raws)
        said = np.exp(raws.astype(np.float64))
        rates = (self._num_taken[cells] + _TRUST * said) / (self._num_seen[cells] + _TRUST)
        found: Floats = np.minimum(np.log(np.maximum(rates, 1e-9)), 0.0).clip(min=_LEAST).astype(np.float32)
        return found

    def _cells(self, raws: Floats) -> tuple[np.ndarray, np.ndarray]:
        ranks = np.minimum(np.arange(len(raws)), MAX_RANKS - 1)
        return ranks, np.searchsorted(_EDGES, raws)
