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
            text = mirror.epoch, self._number, 0, self._root, mirror.lengths[0]
            mirror.take(TreePart(ROW, *text, ids, above, tokens, logprobs))
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

    def reopen(self) -> None:
        """The request ends, and another one gets its `seq`."""
        for mirror in (self.mirror, self.ahead):
            mirror.epoch += 1
            mirror.table.open(ROW, mirror.epoch, self.length)
            mirror.lengths = [self.length]
        self.late.clear()
        self._root = self._next
        self._next, self._number, self._leaves = self._next + 1, 0, [self._root]

    def check_copy(self) -> None:
        """The device has the mirrors' nodes."""
        table, nodes = self.mirror.table, self.nodes.numpy()
        ids = table.ids[: len(nodes)]
        is_node = ids >= 0
        assert (nodes[:, 0] == ids).all()
        assert (nodes[is_node, 1] == table.tokens[: len(nodes)][is_node]).all()
        assert (nodes[is_node, 3] == table.counts[: len(nodes)][is_node]).all()
        has_children = is_node & (nodes[:, 3] > 0)
        assert (nodes[has_children, 2] == table.firsts[: len(nodes)][has_children]).all()

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
    """Outcomes of none, one or two steps are late."""
    num_known, num_behind = 0, set[int]()
    for seed in range(12):
        game = Game(seed)
        for number in range(5):
            game.grow()
            game.grow()
            while len(game.late) > (seed + number) % 3:
                game.arrive()
            num_behind.add(len(game.late))
            expected = game.ahead.speculation(STEPS)[0]
            tokens, count = game.chosen()
            assert (tokens[:count], count) == (expected, len(expected))
            game.check_copy()
            num_known += len(expected)
            game.decide()
    assert num_known > 20
    assert num_behind == {0, 1, 2}


def test_nodes_that_were_there_before_the_copy_are_copied() -> None:
    game = Game(3)
    game.grow()
    game.trees = DeviceTrees(game.mirror.table, game.nodes)
    expected = game.ahead.speculation(STEPS)[0]
    assert expected
    assert game.chosen() == (expected + [0] * (STEPS - len(expected)), len(expected))
    game.check_copy()


def test_nothing_is_left_of_a_request_whose_seq_another_has() -> None:
    game = Game(4)
    game.grow()
    game.chosen()
    game.reopen()
    assert game.chosen() == ([0] * STEPS, 0)
    game.check_copy()
    game.grow()
    expected = game.ahead.speculation(STEPS)[0]
    assert expected
    assert game.chosen()[1] == len(expected)
    game.check_copy()


def test_what_no_draft_has_gets_nothing() -> None:
    game = Game(0)
    game.grow()
    heads = game.updated([-1, ROW, ROW + 1])
    assert heads[:, 0].tolist() == [-1, ROW, -1]
    game.mirror.table.is_out_of_sync[ROW] = True
    assert game.updated([ROW])[:, 0].tolist() == [-1]
    game.mirror.table.is_out_of_sync[ROW] = False
    game.mirror.table.close(ROW)
    assert game.updated([ROW])[:, 0].tolist() == [-1]
