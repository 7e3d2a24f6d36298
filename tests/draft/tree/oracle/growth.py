"""Which nodes the draft processes next: growth policies behind one small interface.

A policy gives each node of a tree a priority; the draft takes the highest, over all its sequences. `value`
is the chance that the text runs through the node. `geometric` has the published fan-outs (Kumar, Dao, May
2026) as an order of growth: a likely path, and beside it F_k alternatives to its k-th token, each continued
along its own likeliest tokens.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ssd.config import GrowthPolicyName
from ssd.draft.tree.select import geometric_fan_out
from tests.draft.tree.oracle.tree import Tree

Priorities = NDArray[np.float64]
NEVER = -np.inf


class GrowthPolicy(Protocol):
    def priorities(self, tree: Tree) -> Priorities:
        """Of each node of a compacted tree; NEVER: not at all."""
        ...


class ValuePolicy:
    """Depth where the draft is sure, fan-out where it is not."""

    def priorities(self, tree: Tree) -> Priorities:
        return tree.relative_values().astype(np.float64)


class FanOutPolicy:
    """A node may leave the likeliest path once, at its k-th token, for one of the F_k next likely ones."""

    def __init__(self, width: int) -> None:
        self._fans = geometric_fan_out(width)

    def priorities(self, tree: Tree) -> Priorities:
        found = np.full(tree.size, NEVER)
        # Of each node: where its path left the likeliest one (-1: not yet), and how far back.
        left_at = np.full(tree.size, -1, dtype=np.int64)
        for node in range(tree.size):
            parent = tree.parents[node]
            if node == tree.root:
                found[node] = 0.0
                continue
            if found[parent] == NEVER:
                continue
            rank = node - tree.first_children[parent]
            depth = tree.depths[node] - tree.depths[tree.root]
            if rank == 0:
                left_at[node] = left_at[parent]
            elif left_at[parent] >= 0 or depth > len(self._fans) or rank > self._fans[depth - 1]:
                continue
            else:
                left_at[node] = depth - 1
            # Every branch grows by one token a step; the likeliest path first, then early departures.
            length = depth if left_at[node] < 0 else depth - left_at[node]
            found[node] = -length - (0.0 if left_at[node] < 0 else 0.01 * (left_at[node] + rank / 8))
        return found


def growth_policy(name: GrowthPolicyName, *, width: int) -> GrowthPolicy:
    match name:
        case "value":
            return ValuePolicy()
        case "geometric":
            return FanOutPolicy(width)
