"""Growth policies: which nodes of the trees come first. Add a policy here.

A policy gives each node a distance from 0 up, as float32, so that its bits have its order: the smallest
distance is grown first. `ByValue` grows the likeliest nodes; `ByFanOut` follows the published fan-outs
(Kumar, Dao, May 2026), which say how many alternatives are prepared for "k accepted".
"""

from typing import Protocol

import numpy as np

from ssd.config import GrowthPolicyName
from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.tables import Constants, Shape, Tables

Distances = tuple[Array, Array | None]
"""Float32 [S, F, C], and which nodes are processed at all (None: any)."""


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


class Priorities(Protocol):
    keeps_partings: bool
    """Whether it asks where paths leave the likeliest one."""

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances: ...


class ByValue:
    """Depth where the draft is sure, fan-out where it is not."""

    keeps_partings = False

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances:
        return abs(xp.real(tables.child_value)), None


class ByFanOut:
    """A path may leave the likeliest one once, at its k-th token, for one of the F_k next likely ones.

    `parted` says where a path last took another token than the likeliest, and where it did before that. So
    whatever root it is seen from, it is known how often it left the likeliest path, and where.
    """

    keeps_partings = True

    def __init__(self, xp: Arrays, fan_out: FanOut, deepest: int = 256) -> None:
        fans = [fan_out.at(k) for k in range(deepest)]
        self._fans = xp.of(fans)
        self._deepest = deepest

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances:
        base = (tables.length - 1)[:, None, None]
        position = (tables.position + 1)[:, :, None]
        is_likeliest = known.ranks == 0
        last = xp.where(is_likeliest, tables.parted[0][:, :, None], position)
        earlier = xp.where(is_likeliest, tables.parted[1][:, :, None], tables.parted[0][:, :, None])
        rank = xp.where(is_likeliest, tables.parted_rank[:, :, None], known.ranks)
        has_left = last > base
        left_at = xp.at_least(last - base - 1, 0)
        fan = self._fans[xp.at_most(left_at, self._deepest - 1)]
        may = (earlier <= base) & ~(has_left & (rank > fan))
        length = xp.where(has_left, position - last + 1, position - base)
        aside = xp.where(has_left, xp.exact(left_at) + known.ranks / 8, known.nought)
        return xp.real(length + 0.01 * aside), may


def priorities(name: GrowthPolicyName, xp: Arrays, shape: Shape) -> Priorities:
    match name:
        case "value":
            return ByValue()
        case "geometric":
            return ByFanOut(xp, GeometricFanOut(shape.width))
        case "uniform":
            return ByFanOut(xp, UniformFanOut(shape.width))
