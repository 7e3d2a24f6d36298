"""Random choices for ratio acceptance: all of them go through `Chooser.choose`.

So tests can enumerate all choices instead of sampling. The engine uses `PhiloxChooser`:

    key     = the seed's low and high 32 bits                     as for the Gumbel noise
    counter = (0, position, stream, 0)                            the noise has 0 in the place of the stream
    n       = the first 52 bits of Philox4x32-10(counter, key)    word 0, then the top 20 bits of word 1
    u       = (n + ½) / 2⁵²                                       exact in float64, never 0 or 1

Every position is decided once, so no number decides two final tokens. A number may be used again if its first
token was discarded (truncated, or after a rejected one), as long as nothing depended on that token. A draft
that grows several branches, and selects branches by the tokens sampled in others, needs separate numbers for
each node: a chooser with `mix_seed(seed, node)`. The target does not need to know them.

Knows weights and streams. Does not know tokens.
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
    """The purpose of a choice. Each stream has its own numbers; stream 0 belongs to the Gumbel noise."""

    DRAFT = 1
    ACCEPTANCE = 2
    RESIDUAL = 3


class Chooser(Protocol):
    def choose(self, weights: Weights, stream: Stream, position: int) -> int:
        """An index, with probability proportional to its weight."""
        ...


ChooserOf = Callable[[int], Chooser]
"""Makes the chooser of a sequence from its seed."""


class PhiloxChooser:
    def __init__(self, seed: int) -> None:
        self._key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)

    def choose(self, weights: Weights, stream: Stream, position: int) -> int:
        cumulative = np.cumsum(weights, dtype=np.float64)
        total = cumulative[-1]
        index = np.searchsorted(cumulative, self.uniform(stream, position) * total, side="right")
        # The product may round up to the total: then the last index with a weight is chosen.
        return int(min(index, np.searchsorted(cumulative, total)))

    def uniform(self, stream: Stream, position: int) -> float:
        words = philox4x32_block((0, position, int(stream), 0), self._key)
        return float(((words[0] << 20 | words[1] >> 12) + 0.5) * 2.0**-52)
