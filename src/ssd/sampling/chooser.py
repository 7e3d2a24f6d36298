"""Weighted choices for ratio acceptance: all of its chance goes through `Chooser.choose`.

So a test can follow every choice through all its branches instead of drawing. What draws is `PhiloxChooser`:

    key     = the seed's low and high 32 bits                     as for the Gumbel noise
    counter = (0, position, stream, 0)                            the noise has 0 in the place of the stream
    n       = the first 52 bits of Philox4x32-10(counter, key)    word 0, then the top 20 bits of word 1
    u       = (n + ½) / 2⁵²                                       exact in float64, never 0 or 1

A position is decided once, so no number serves two decisions that both stand: a number drawn for a token
that was cut, or that followed a rejected one, has influenced nothing and serves again. That is so as long as
nothing looks at such a token. A draft that grows several branches, and chooses which by the tokens it drew in
others, needs numbers for each node: a chooser of `mix_seed(seed, node)`. The target need not know them.

Knows weights and streams, not tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ssd.sampling.philox import philox4x32_block

Weights = Sequence[float] | NDArray[np.floating]


class Stream(IntEnum):
    """What a choice is for. Each has numbers of its own; 0 is the Gumbel noise's and none of these."""

    DRAFT = 1
    ACCEPTANCE = 2
    RESIDUAL = 3


class Chooser(Protocol):
    def choose(self, weights: Weights, stream: Stream, position: int) -> int:
        """An index, with probability proportional to its weight."""
        ...


ChooserOf = Callable[[int], Chooser]
"""The chooser of a sequence, given its seed."""


class PhiloxChooser:
    def __init__(self, seed: int) -> None:
        self._key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)

    def choose(self, weights: Weights, stream: Stream, position: int) -> int:
        cumulative = np.cumsum(weights, dtype=np.float64)
        total = cumulative[-1]
        index = np.searchsorted(cumulative, self.uniform(stream, position) * total, side="right")
        # The product may round up to the total; the last index that has any weight is then meant.
        return int(min(index, np.searchsorted(cumulative, total)))

    def uniform(self, stream: Stream, position: int) -> float:
        words = philox4x32_block((0, position, int(stream), 0), self._key)
        return float(((words[0] << 20 | words[1] >> 12) + 0.5) * 2.0**-52)
