"""The rolling tree: possible futures of one sequence, as a struct of arrays.

A node is a token that may follow its parent. It is *known* once it is in the tree and
*grown* once the draft has processed it, which is when its children become known. The draft
uses the tree with KV slots, the engine as a mirror without them. No torch, no messages.

Children are added all at once, most likely first, and lie next to each other; a parent lies
before its children. Moving the root leaves lost branches where they are until `compact`.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_Scalar = TypeVar("_Scalar", bound=np.generic)

UNNAMED = -1
"""Id of a node that the other side has not named yet."""
UNGROWN = -1
"""Slot of a node that the draft may still process."""
BARREN = -2
"""Slot of a node that is not worth processing: nothing follows an end token."""

_INT_COLUMNS = ("ids", "parents", "tokens", "depths", "first_children", "num_children", "slots")
_FLOAT_COLUMNS = ("logprobs", "values", "raws")
_INITIAL_CAPACITY = 128


class Tree:
    """The columns are longer than the tree: read them up to `size`."""

    def __init__(self, root_id: int, root_token: int) -> None:
        self.ids, self.parents, self.tokens, self.depths = (_column(np.int32) for _ in range(4))
        self.first_children, self.num_children, self.slots = (_column(np.int32) for _ in range(3))
        self.logprobs, self.values, self.raws = (_column(np.float32) for _ in range(3))
        self._index_of: dict[int, int] = {}
        self.size = 0
        self.root = 0
        self.replant(root_id, root_token)

    @property
    def root_id(self) -> int:
        return int(self.ids[self.root])

    def replant(self, root_id: int, root_token: int) -> None:
        """Starts anew from a root of which nothing is known but its token."""
        self.size, self.root = 1, 0
        self.ids[0], self.tokens[0], self.parents[0] = root_id, root_token, 0
        self.depths[0] = self.num_children[0] = self.first_children[0] = 0
        self.slots[0] = UNGROWN
        self.logprobs[0] = self.values[0] = self.raws[0] = 0.0
        self._index_of = {root_id: 0} if root_id != UNNAMED else {}

    def name_root(self, root_id: int) -> None:
        self.ids[self.root] = root_id
        self._index_of[root_id] = self.root

    def index_of(self, node_id: int) -> int | None:
        return self._index_of.get(node_id)

    def graft(
        self,
        parent: int,
        ids: Sequence[int] | Ints,
        tokens: Ints,
        logprobs: Floats,
        raws: Floats | float = 0.0,
    ) -> None:
        """Adds the children of a node, most likely first. A node gets its children once.

        `raws` is the draft's own: what the model said before `logprobs` were calibrated.
        """
        if self.num_children[parent]:
            raise ValueError(f"node {self.ids[parent]} already has its children")
        if len(set(tokens.tolist())) != len(tokens):
            raise ValueError(f"node {self.ids[parent]} would have a child twice")
        first, count = self.size, len(tokens)
        self._reserve(first + count)
        new = slice(first, first + count)
        self.ids[new], self.tokens[new], self.logprobs[new] = ids, tokens, logprobs
        self.parents[new], self.depths[new] = parent, self.depths[parent] + 1
        self.values[new] = self.values[parent] + logprobs
        self.raws[new] = raws
        self.num_children[new], self.first_children[new], self.slots[new] = 0, 0, UNGROWN
        self.first_children[parent], self.num_children[parent] = first, count
        for offset, node_id in enumerate(ids):
            self._index_of[int(node_id)] = first + offset
        self.size += count

    def children(self, node: int) -> range:
        first = int(self.first_children[node])
        return range(first, first + int(self.num_children[node]))

    def child(self, node: int, token: int) -> int | None:
        for index in self.children(node):
            if self.tokens[index] == token:
                return index
        return None

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes along the tokens that follow the root, as far as they are known."""
        path: list[int] = []
        for token in tokens:
            node = self.child(path[-1] if path else self.root, token)
            if node is None:
                break
            path.append(node)
        return path

    def best_path(self, limit: int) -> list[int]:
        """The most likely known continuation of the root, at most `limit` nodes."""
        path: list[int] = []
        node = self.root
        while len(path) < limit and self.num_children[node]:
            node = int(self.first_children[node])
            path.append(node)
        return path

    def ancestors(self, node: int) -> list[int]:
        """The nodes between the root and this one, nearest first; neither is among them."""
        found = []
        node = int(self.parents[node])
        while node != self.root:
            found.append(node)
            node = int(self.parents[node])
        return found

    def relative_depths(self) -> Ints:
        depths: Ints = self.depths[: self.size] - self.depths[self.root]
        return depths

    def relative_values(self) -> Floats:
        """Of each node, the logarithm of the chance that the text runs through it."""
        values: Floats = self.values[: self.size] - self.values[self.root]
        return values

    def move_root(self, node: int) -> None:
        self.root = node

    def compact(self) -> Ints:
        """Drops what is not below the root; returns the old indices of what is left, in their new order."""
        alive = self._alive()
        kept = np.flatnonzero(alive).astype(np.int32)
        new_index = np.cumsum(alive, dtype=np.int32) - 1
        # Indices that mean nothing (the root's parent, the children of the childless) are 0, or the root.
        parents = np.where(kept == self.root, self.root, self.parents[kept])
        first_children = np.where(self.num_children[kept] > 0, self.first_children[kept], self.root)
        for name in _INT_COLUMNS + _FLOAT_COLUMNS:
            column = getattr(self, name)
            column[: len(kept)] = column[kept]
        self.size = len(kept)
        self.parents[: self.size] = new_index[parents]
        self.first_children[: self.size] = new_index[first_children]
        self.depths[: self.size] -= self.depths[0]
        self.values[: self.size] -= self.values[0]
        self.root = 0
        self._index_of = {
            node_id: index for index, node_id in enumerate(self.ids[: self.size].tolist()) if node_id >= 0
        }
        return kept

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the columns describe one tree."""
        for node in range(self.size):
            for child in self.children(node):
                _require(node < child < self.size, f"children of node {node} lie outside")
                _require(int(self.parents[child]) == node, f"node {child} does not know its parent {node}")
                _require(
                    self.depths[child] == self.depths[node] + 1,
                    f"depth of node {child} is not its parent's + 1",
                )
            siblings = [int(self.tokens[child]) for child in self.children(node)]
            _require(len(set(siblings)) == len(siblings), f"node {node} has a child twice")
        named = [int(each) for each in self.ids[: self.size] if each != UNNAMED]
        _require(len(set(named)) == len(named), "an id is used twice")
        _require(
            all(int(self.ids[index]) == node_id for node_id, index in self._index_of.items()), "ids are lost"
        )
        _require(len(self._index_of) == len(named), "ids are missing")

    def _alive(self) -> NDArray[np.bool_]:
        alive = np.zeros(self.size, dtype=np.bool_)
        alive[self.root] = True
        parents = self.parents[: self.size]
        for _level in range(int(self.relative_depths().max())):
            alive |= alive[parents]
        return alive

    def _reserve(self, size: int) -> None:
        if size <= len(self.ids):
            return
        capacity = max(size, 2 * len(self.ids))
        for name in _INT_COLUMNS + _FLOAT_COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros(capacity - len(column), column.dtype))))


def _column(dtype: type[_Scalar]) -> NDArray[_Scalar]:
    return np.zeros(_INITIAL_CAPACITY, dtype=dtype)


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise RuntimeError(message)
