"""Which nodes come first: the growth policies of `growth.py` as columns.

A priority here is how far a node stands back, from 0 on: float32, so that its bits have its order.
"""

from typing import Protocol

from ssd.config import GrowthPolicyName
from ssd.draft.fan_out import FanOut, GeometricFanOut, UniformFanOut
from ssd.draft.forest.arrays import Array, Arrays
from ssd.draft.forest.constants import Constants
from ssd.draft.forest.tables import Shape, Tables

Distances = tuple[Array, Array | None]
"""Float32 [S, F, C], and which nodes are processed at all (None: any)."""


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
