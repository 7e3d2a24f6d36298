"""The rolling tree: possible futures of one sequence, as a struct of arrays.

A node is a token that may follow its parent. It is *known* once it is in the tree and
*grown* once the draft has processed it, which is when its children become known. One tree by
itself, to plan with and to compare with: the draft has all of its own in tables (`draft/tree`).

Children are added all at once, most likely first, and lie next to each other; a parent lies
before its children. Moving the root leaves lost branches where they are until `compact`.
The columns are plain lists: a frame brings a handful of nodes and a round follows a handful of
links, and for that lists are several times faster than numpy arrays.
"""

from collections.abc import Sequence

import numpy as np

from ssd.draft.protocol.messages import Floats, Ints

UNNAMED = -1
"""Id of a node that has none."""
UNGROWN = -1
"""Slot of a node that the draft may still process."""
BARREN = -2
"""Slot of a node that is not worth processing: nothing follows an end token."""


class Tree:
    def __init__(self, root_id: int, root_token: int) -> None:
        self.replant(root_id, root_token)

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def root_id(self) -> int:
        return self.ids[self.root]

    def replant(self, root_id: int, root_token: int) -> None:
        """Starts anew from a root of which nothing is known but its token."""
        self.root = 0
        self.ids, self.tokens, self.parents, self.depths = [root_id], [root_token], [0], [0]
        self.first_children, self.num_children, self.slots = [0], [0], [UNGROWN]
        self.logprobs, self.values, self.raws = [0.0], [0.0], [0.0]

    def graft(
        self,
        parent: int,
        ids: Sequence[int],
        tokens: Sequence[int],
        logprobs: Sequence[float],
        raws: Sequence[float] | None = None,
    ) -> None:
        """Adds the children of a node, most likely first. A node gets its children once.

        `raws` is the draft's own: what the model said before `logprobs` were calibrated.
        """
        if self.num_children[parent]:
            raise ValueError(f"node {self.ids[parent]} already has its children")
        if len(set(tokens)) != len(tokens):
            raise ValueError(f"node {self.ids[parent]} would have a child twice")
        first, count, value = len(self.ids), len(tokens), self.values[parent]
        self.first_children[parent], self.num_children[parent] = first, count
        self.ids.extend(ids)
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        self.values.extend([value + logprob for logprob in logprobs])
        self.raws.extend(raws if raws is not None else logprobs)
        self.parents.extend([parent] * count)
        self.depths.extend([self.depths[parent] + 1] * count)
        self.first_children.extend([0] * count)
        self.num_children.extend([0] * count)
        self.slots.extend([UNGROWN] * count)

    def children(self, node: int) -> range:
        first = self.first_children[node]
        return range(first, first + self.num_children[node])

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
            node = self.first_children[node]
            path.append(node)
        return path

    def ancestors(self, node: int) -> list[int]:
        """The nodes between the root and this one, nearest first; neither is among them."""
        found = []
        node = self.parents[node]
        while node != self.root:
            found.append(node)
            node = self.parents[node]
        return found

    def relative_depths(self) -> Ints:
        return np.array(self.depths, dtype=np.int32) - self.depths[self.root]

    def relative_values(self) -> Floats:
        """Of each node, the logarithm of the chance that the text runs through it."""
        return np.array(self.values, dtype=np.float32) - np.float32(self.values[self.root])

    def move_root(self, node: int) -> None:
        self.root = node

    def compact(self) -> list[int]:
        """Drops what is not below the root; returns the old indices of what is left, in their new order."""
        kept, new_index = [self.root], {self.root: 0}
        for node in range(self.root + 1, self.size):
            if self.parents[node] in new_index:
                new_index[node] = len(kept)
                kept.append(node)
        depth, value = self.depths[self.root], self.values[self.root]
        self.parents = [0, *(new_index[self.parents[node]] for node in kept[1:])]
        self.first_children = [new_index.get(self.first_children[node], 0) for node in kept]
        self.depths = [self.depths[node] - depth for node in kept]
        self.values = [self.values[node] - value for node in kept]
        for name in ("ids", "tokens", "num_children", "slots", "logprobs", "raws"):
            column = getattr(self, name)
            setattr(self, name, [column[node] for node in kept])
        self.root = 0
        return kept

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the columns describe one tree."""
        for node in range(self.size):
            for child in self.children(node):
                _require(node < child < self.size, f"children of node {node} lie outside")
                _require(self.parents[child] == node, f"node {child} does not know its parent {node}")
                _require(self.depths[child] == self.depths[node] + 1, f"node {child} has a wrong depth")
            siblings = [self.tokens[child] for child in self.children(node)]
            _require(len(set(siblings)) == len(siblings), f"node {node} has a child twice")
        named = [each for each in self.ids if each != UNNAMED]
        _require(len(set(named)) == len(named), "an id is used twice")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)
