"""The device's copy of a mirror leads to the tokens that the mirror itself would propose."""

import numpy as np
import torch
from torch import Tensor

from ssd.draft.protocol.messages import TreePart
from ssd.integrations.vllm.device_trees import DeviceTrees, empty_nodes, walk_nodes
from tests.draft.client.one_mirror import ROW, OneMirror

STEPS, VOCAB, TEXT = 3, 5, 256
CPU = torch.device("cpu")


class Game:
    """A draft that grows a tree, a target whose tokens the host learns late, and the device between them."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.mirror, self.ahead = OneMirror(1), OneMirror(1)
        """What the host knows, and what it would know if it had every token already."""
        self.nodes = empty_nodes(ROW + 1, CPU)
        self.trees = DeviceTrees(self.mirror.table, self.nodes)
        self.texts = torch.zeros(1, TEXT, dtype=torch.int32)
        self.length, self.late = 1, list[list[int]]()
        self._root, self._next, self._number, self._leaves = 0, 1, 0, [0]

    def grow(self) -> None:
        """A frame: children for some of the leaves."""
        parents = sorted({self._leaves.pop(0) for _ in range(min(2, len(self._leaves)))})
        ids, above, tokens = list[int](), list[int](), list[int]()
        for parent in parents:
            family = self._rng.permutation(VOCAB)[: int(self._rng.integers(1, 5))].tolist()
            ids += range(self._next, self._next + len(family))
            above += [parent] * len(family)
            tokens += family
            self._next += len(family)
        self._leaves += ids
        logprobs = [-1.0] * len(ids)
        for mirror in (self.mirror, self.ahead):
            part = TreePart(ROW, 1, self._number, 0, self._root, 1, ids, above, tokens, logprobs, False)
            mirror.take(part)
        self._number += 1

    def decide(self) -> None:
        """The target's next tokens: on the device and in `ahead` at once, on the host later."""
        path = self.ahead.speculation(int(self._rng.integers(0, 3)))[0]
        tokens = [*path, int(self._rng.integers(0, VOCAB))]
        self.texts[0, self.length : self.length + len(tokens)] = torch.tensor(tokens)
        self.length += len(tokens)
        self.ahead.advance(tokens)
        self.late.append(tokens)

    def arrive(self) -> None:
        """The oldest late tokens reach the host."""
        if self.late:
            self.mirror.advance(self.late.pop(0))

    def updated(self, seqs: list[int]) -> Tensor:
        return self.trees.upload(self.trees.collect(seqs))

    def chosen(self) -> tuple[list[int], int]:
        drafts, counts = walk_nodes(
            self.nodes,
            self.updated([ROW]),
            request_rows=torch.zeros(1, dtype=torch.int64),
            lengths=torch.tensor([self.length], dtype=torch.int32),
            texts=self.texts,
            num_sampled=torch.ones(1, dtype=torch.int32),
            num_steps=STEPS,
        )
        return drafts[0].tolist(), int(counts[0])


def test_the_device_chooses_what_the_host_would_choose() -> None:
    num_known = 0
    for seed in range(12):
        game = Game(seed)
        for _ in range(4):
            game.grow()
            game.grow()
            expected = game.ahead.speculation(STEPS)[0]
            tokens, count = game.chosen()
            assert (tokens[:count], count) == (expected, len(expected))
            num_known += len(expected)
            game.decide()
            if len(game.late) > 2:
                game.arrive()
    assert num_known > 20


def test_what_no_draft_has_gets_nothing() -> None:
    game = Game(0)
    game.grow()
    heads = game.updated([-1, ROW, ROW + 1])
    assert heads[:, 0].tolist() == [-1, ROW, -1]
    game.mirror.table.close(ROW)
    assert game.updated([ROW])[:, 0].tolist() == [-1]


def test_a_step_without_news_writes_nothing() -> None:
    game = Game(1)
    game.grow()
    game.updated([ROW])
    assert not len(game.mirror.table.take_changes())
