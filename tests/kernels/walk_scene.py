"""Random trees, texts and outcomes for the walk kernel, and the same walk in plain Python."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ssd.kernels.walk import COLUMNS, HEADS, walk

SLOTS, MOST_CHILDREN, VOCAB, TEXT = 64, 5, 7, 64
_EMPTY, _LAST_ID = -2, 2**31 - 1
_DEPTH = 14


@dataclass(slots=True)
class Node:
    token: int
    first: int = 0
    """Its first child; nodes are known by their number in the tree, the root is 0."""
    count: int = 0


class Scene:
    """A batch whose requests, texts and rows of the table have different orders."""

    def __init__(self, seed: int, num_requests: int, num_steps: int) -> None:
        self._rng = rng = np.random.default_rng(seed)
        self.num_steps, self.most_behind = num_steps, 2 * (num_steps + 1)
        self.kinds = Counter[str]()
        """How many requests are of each kind."""
        self.nodes = np.zeros((2 * num_requests * SLOTS, COLUMNS), np.int32)
        self.nodes[:, 0] = _EMPTY
        self.heads = np.full((num_requests, HEADS), -1, np.int32)
        # Wider than a text can be, as on a device.
        self.texts = rng.integers(0, VOCAB, (num_requests, TEXT + 5)).astype(np.int32)[:, :TEXT]
        self.lengths = np.zeros(num_requests, np.int32)
        self.request_rows = rng.permutation(num_requests)
        self.num_sampled = (rng.random(num_requests) < 0.95).astype(np.int32)
        for request, row in enumerate(rng.permutation(2 * num_requests)[:num_requests].tolist()):
            self._add(request, row)

    def _add(self, request: int, row: int) -> None:
        rng, text = self._rng, int(self.request_rows[request])
        length, behind = int(rng.integers(1, 20)), self._behind()
        self.lengths[text] = length + behind
        if rng.random() < 0.1:
            self.kinds["no tree"] += 1
            return
        tree, spine = self._tree(int(rng.choice([30, 40, 50, SLOTS + 8])))
        root = self._root(len(tree))
        self.heads[request] = row, root, length
        for number, node in enumerate(tree):
            # What a node without children says of its first child is left from an older one.
            first = node.first if node.count else int(rng.integers(1, len(tree)))
            self._place(row, root + number)[:] = root + number, node.token, root + first, node.count
        for number in rng.integers(1, len(tree), int(rng.choice([0, 0, 6, 12]))).tolist():
            # Written over, by a node whose token is that of a sibling.
            self._place(row, root + number)[:2] = root + number - SLOTS, tree[number - 1].token
        self.texts[text, length : length + len(spine)] = spine
        if behind > 0 and rng.random() < 0.2:
            self.kinds["leaves the tree"] += 1
            self.texts[text, length + int(rng.integers(0, behind))] = VOCAB

    def _behind(self) -> int:
        """The number of tokens that the host does not know: those of 0, 1 or 2 steps."""
        if self._rng.random() < 0.08:
            self.kinds["impossible length"] += 1
            return int(self._rng.choice([-1, self.most_behind + 1]))
        num_outcomes = int(self._rng.integers(0, 3))
        self.kinds[f"{num_outcomes} steps behind"] += 1
        return int(self._rng.integers(1, self.num_steps + 2, num_outcomes).sum())

    def _tree(self, size: int) -> tuple[list[Node], list[int]]:
        """About `size` nodes, later ones are younger; and the tokens along one long path, the spine."""
        tree, spine, waiting, deepest = [Node(0)], list[int](), list[int](), 0
        while len(tree) < size:
            is_deeper = len(spine) < _DEPTH and (not waiting or self._rng.random() < 0.6)
            parent = deepest if is_deeper else waiting.pop(int(self._rng.integers(0, len(waiting))))
            tokens = self._rng.permutation(VOCAB)[: int(self._rng.integers(1, MOST_CHILDREN + 1))].tolist()
            children = list(range(len(tree), len(tree) + len(tokens)))
            tree[parent].first, tree[parent].count = len(tree), len(tokens)
            tree += map(Node, tokens)
            if is_deeper:
                deepest = children.pop(0 if self._rng.random() < 0.7 else -1)
                spine.append(tree[deepest].token)
            waiting += children
        return tree, spine

    def _root(self, num_nodes: int) -> int:
        """Small ids, ids around a multiple of SLOTS, or the last that int32 has."""
        kind = self._rng.choice(["small ids", "ids around the first place", "last ids of int32"])
        self.kinds[str(kind)] += 1
        if kind == "last ids of int32":
            return _LAST_ID + 1 - num_nodes
        if kind == "small ids":
            return int(self._rng.integers(0, 1000))
        return int(self._rng.integers(1, 10_000)) * SLOTS - int(self._rng.integers(1, 20))

    def expected(self, request: int) -> list[int]:
        row, node, length = self.heads[request].tolist()
        text = int(self.request_rows[request])
        end = int(self.lengths[text])
        if row < 0 or not self.num_sampled[request] or not 0 <= end - length <= self.most_behind:
            return []
        for token in self.texts[text, length:end].tolist():
            found = [child for child in self._children(row, node) if self._place(row, child)[1] == token]
            if not found:
                return []
            node = found[0]
        path = list[int]()
        while len(path) < self.num_steps and (child := self._first_child(row, node)) is not None:
            node = child
            path.append(int(self._place(row, node)[1]))
        return path

    def _first_child(self, row: int, node: int) -> int | None:
        """None: the node has no children, or one of the two is written over."""
        place = self._place(row, node)
        if place[0] == node and not place[3]:
            return None
        if place[0] != node or self._place(row, int(place[2]))[0] != place[2]:
            self.kinds["written over"] += 1
            return None
        return int(place[2])

    def _children(self, row: int, node: int) -> list[int]:
        place = self._place(row, node)
        if place[0] != node:
            self.kinds["written over"] += 1
            return []
        ids = range(int(place[2]), int(place[2]) + int(place[3]))
        return [each for each in ids if self._place(row, each)[0] == each]

    def _place(self, row: int, node: int) -> NDArray[np.int32]:
        place: NDArray[np.int32] = self.nodes[row * SLOTS + node % SLOTS]
        return place

    def walked(self) -> tuple[list[list[int]], list[int]]:
        drafts, counts = walk(
            torch.from_numpy(self.nodes),
            torch.from_numpy(self.heads),
            slots=SLOTS,
            request_rows=torch.from_numpy(self.request_rows),
            lengths=torch.from_numpy(self.lengths),
            texts=torch.from_numpy(self.texts),
            num_sampled=torch.from_numpy(self.num_sampled),
            num_steps=self.num_steps,
            most_behind=self.most_behind,
            most_children=MOST_CHILDREN,
        )
        return drafts.tolist(), counts.tolist()
