"""The path that the device takes through a tree is the one that the host would take."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ssd.kernels.walk import COLUMNS, HEADS, walk

SLOTS, MOST_CHILDREN, STEPS, MOST_BEHIND, VOCAB, TEXT = 64, 4, 4, 10, 6, 64
EMPTY = -2


class Scene:
    """Random trees, half of which contain the text, in rows of a table that is not in the batch's order."""

    def __init__(self, seed: int, num_requests: int = 24) -> None:
        self._rng = rng = np.random.default_rng(seed)
        self.nodes = np.zeros((2 * num_requests * SLOTS, COLUMNS), np.int32)
        self.nodes[:, 0] = EMPTY
        self.heads = np.full((num_requests, HEADS), -1, np.int32)
        self.texts = rng.integers(0, VOCAB, (num_requests, TEXT)).astype(np.int32)
        self.request_rows = rng.permutation(num_requests)
        self.num_sampled = rng.integers(0, 4, num_requests).astype(np.int32)
        self.lengths = np.zeros(num_requests, np.int32)
        table_rows = rng.permutation(2 * num_requests)[:num_requests]
        for request, row in enumerate(table_rows):
            base = int(rng.integers(1, 20))
            text = self.request_rows[request]
            self.lengths[text] = base + rng.integers(-1, MOST_BEHIND + 2)
            if rng.random() < 0.9:
                root = int(rng.integers(0, 1000))
                self.heads[request] = row, root, base
                self._grow(row, root, self.texts[text, base:] if request % 2 else ())

    def _grow(self, row: int, root: int, text: "NDArray[np.int32] | tuple[()]") -> None:
        """A tree of random families; its first path may be the text."""
        self._put(row, root, 0)
        next_id, waiting, on_text = root + 1, [root], root
        for depth in range(14):
            parent = waiting.pop(int(self._rng.integers(0, len(waiting)))) if len(text) == 0 else on_text
            tokens = self._rng.permutation(VOCAB)[: int(self._rng.integers(1, MOST_CHILDREN + 1))]
            if len(text) and text[depth] not in tokens and self._rng.random() < 0.95:
                tokens[-1] = text[depth]
            place = row * SLOTS + parent % SLOTS
            self.nodes[place, 2:] = next_id, len(tokens)
            for number, token in enumerate(tokens.tolist()):
                self._put(row, next_id + number, token)
                waiting.append(next_id + number)
                if len(text) and token == text[depth]:
                    on_text = next_id + number
            next_id += len(tokens)
            if next_id - root > SLOTS + 8:  # Some nodes are written over.
                return

    def _put(self, row: int, node: int, token: int) -> None:
        self.nodes[row * SLOTS + node % SLOTS] = node, token, 0, 0

    def expected(self, request: int) -> list[int]:
        row, node, length = self.heads[request].tolist()
        text = self.texts[self.request_rows[request]]
        end = int(self.lengths[self.request_rows[request]])
        if row < 0 or not self.num_sampled[request] or not 0 <= end - length <= MOST_BEHIND:
            return []
        for position in range(length, end):
            children = self._children(row, node)
            found = [child for child, token in children if token == text[position]]
            if not found:
                return []
            node = found[0]
        path = list[int]()
        while len(path) < STEPS and (place := self.nodes[row * SLOTS + node % SLOTS])[0] == node and place[3]:
            child = self.nodes[row * SLOTS + place[2] % SLOTS]
            if child[0] != place[2]:
                break
            node = int(child[0])
            path.append(int(child[1]))
        return path

    def _children(self, row: int, node: int) -> list[tuple[int, int]]:
        place = self.nodes[row * SLOTS + node % SLOTS]
        if place[0] != node:
            return []
        ids = range(int(place[2]), int(place[2] + place[3]))
        return [
            (each, int(self.nodes[row * SLOTS + each % SLOTS][1]))
            for each in ids
            if self.nodes[row * SLOTS + each % SLOTS][0] == each
        ]

    def walked(self) -> tuple[list[list[int]], list[int]]:
        drafts, counts = walk(
            torch.from_numpy(self.nodes),
            torch.from_numpy(self.heads),
            slots=SLOTS,
            request_rows=torch.from_numpy(self.request_rows),
            lengths=torch.from_numpy(self.lengths),
            texts=torch.from_numpy(self.texts),
            num_sampled=torch.from_numpy(self.num_sampled),
            num_steps=STEPS,
            most_behind=MOST_BEHIND,
            most_children=MOST_CHILDREN,
        )
        return drafts.tolist(), counts.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_the_walk_is_that_of_plain_python(seed: int) -> None:
    scene = Scene(seed)
    drafts, counts = scene.walked()
    expected = [scene.expected(request) for request in range(len(drafts))]
    assert drafts == [path + [0] * (STEPS - len(path)) for path in expected]
    assert counts == [*map(len, expected)]
    assert sum(map(bool, expected)) > 4
