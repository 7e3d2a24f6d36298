"""The published fan-outs (Kumar, Dao, May 2026): how many alternatives are prepared for "k accepted"."""

from typing import Protocol

import numpy as np


class FanOut(Protocol):
    def at(self, k: int) -> int:
        """Alternatives prepared for "k accepted"."""
        ...


class UniformFanOut:
    def __init__(self, width: int) -> None:
        self._each = max(1, width // 4)

    def at(self, k: int) -> int:
        return self._each


class GeometricFanOut:
    """F_k = F_0 · a^{k/(1+r)}, scaled so that the first `depth` of them sum to the width.

    Acceptance and exponent are assumed, not measured. The published term of its own for "all accepted" is
    left out: a path that rolls on has no last token.
    """

    def __init__(self, width: int, *, acceptance: float = 0.8, exponent: float = 1.0, depth: int = 8) -> None:
        weights = acceptance ** (np.arange(depth) / (1 + exponent))
        self._fans = np.maximum(1, np.round(weights / weights.sum() * width)).astype(int)

    def at(self, k: int) -> int:
        return int(self._fans[k]) if k < len(self._fans) else 0
