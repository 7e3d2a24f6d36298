"""Rows of a tree see prefix, ancestors and themselves: the backends against a plain mask in float64."""

import math
import random
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd.attention import sdpa
from ssd.attention.batch import BatchWriter
from ssd.attention.inputs import Branches, Layout, PlainInput
from ssd.attention.paged import PagedBackend
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE, QUERY_TILE, SdpaBackend
from ssd.draft.client.proposals import path_to
from ssd.kvcache.pool import NODES_PER_TREE, KVPool, PoolShape
from tests.attention.attended import attended

HEADS, KV_HEADS, HEAD_DIM, BLOCK, NUM_BLOCKS, NUM_TREES = 6, 2, 32, 4, 128, 3
CPU = torch.device("cpu")
SHAPE = PoolShape(
    1, KV_HEADS, HEAD_DIM, NUM_BLOCKS, BLOCK, torch.float32, CPU, DETERMINISTIC_KEY_TILE, NUM_TREES
)
GARBAGE = 1e4
"""In every slot that no row may see. Not NaN: a masked value is multiplied by 0, and 0 · NaN is NaN."""

BACKENDS = {
    "sdpa": lambda pool: SdpaBackend(pool, HEADS),
    "deterministic": lambda pool: SdpaBackend(pool, HEADS, deterministic=True),
    "paged": PagedBackend,
}
every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True, params=[8, 256])
def least_prefix(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """KvBlocks apart from the rest, and under one mask with it."""
    monkeypatch.setattr(sdpa, "LEAST_PREFIX", request.param)


@dataclass
class Piece:
    """One sequence's share of a forward: the first `start` places are there already, `count` rows come.

    A place is a token of the text or, from `num_prefix` on, a node of a tree, wherever its key lies.
    """

    blocks: list[int]
    start: int
    count: int
    seen: list[set[int]]
    """Of each row, the places it sees, its own among them."""
    num_prefix: int | None = None
    """None: all of it is text."""
    tree_start: int = 0
    node_slots: tuple[int, ...] = ()
    """The tree slot of each place from `num_prefix` on."""

    def slot(self, place: int) -> int:
        if self.num_prefix is not None and place >= self.num_prefix:
            return self.tree_start + self.node_slots[place - self.num_prefix]
        return self.blocks[place // BLOCK] * BLOCK + place % BLOCK

    def row(self) -> PlainInput:
        tokens = [0] * self.count
        if self.num_prefix is None:
            return PlainInput(tokens, self.start, self.blocks, 0, generated=True)
        nodes = [self.node_slots[self.start + row - self.num_prefix] for row in range(self.count)]
        above = [[each - self.num_prefix for each in seen if each >= self.num_prefix] for seen in self.seen]
        paths = [sum(1 << self.node_slots[each] for each in mine) for mine in above]
        positions = [self.num_prefix + len(mine) - 1 for mine in above]
        branches = Branches(positions, self.num_prefix, self.tree_start, nodes, paths)
        return PlainInput(tokens, 0, self.blocks, 0, generated=True, branches=branches)


def text(rng: random.Random, blocks: list[int], tree: int) -> Piece:
    """An ordinary span: a prompt's chunk or a row to decode."""
    start, count = rng.choice([(0, rng.randint(1, 80)), (rng.randint(1, 90), rng.choice([1, 1, 5, 70]))])
    return Piece(blocks, start, count, [set(range(start + row + 1)) for row in range(count)])


def tree(rng: random.Random, blocks: list[int], tree: int, *, count: int | None = None) -> Piece:
    """A prefix, nodes in random tree slots, and rows whose parents are any of these."""
    num_prefix, num_grown = rng.randint(1, 60), rng.randint(0, 40)
    count = count or rng.choice([1, 2, 12, 12, QUERY_TILE + 3])
    above: list[list[int]] = []
    for node in range(num_grown + count):
        # Parents of rows are mostly there before; the same forward may hold a parent and its child as well.
        last = node if rng.random() < 0.2 else min(node, num_grown)
        parent = rng.randint(-1, last - 1) if last else -1
        above.append([num_prefix + parent, *above[parent]] if parent >= 0 else [])
    start, prefix = num_prefix + num_grown, set(range(num_prefix))
    seen = [prefix | set(mine) | {start + row} for row, mine in enumerate(above[num_grown:])]
    node_slots = tuple(rng.sample(range(NODES_PER_TREE), num_grown + count))
    return Piece(blocks, start, count, seen, num_prefix, SHAPE.tree_start(tree), node_slots)


def block_tables(rng: random.Random, count: int, *, scattered: bool) -> list[list[int]]:
    numbers = list(range(NUM_BLOCKS))
    if scattered:
        rng.shuffle(numbers)
    share = NUM_BLOCKS // count
    return [numbers[index * share : (index + 1) * share] for index in range(count)]


class Forward:
    """Pieces with random queries, keys and values; what is there before is already in the pool."""

    def __init__(self, pieces: list[Piece], seed: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pieces = pieces
        self.pool = KVPool(replace(SHAPE, dtype=dtype))
        self.pool.keys.fill_(GARBAGE)
        self.pool.values.fill_(GARBAGE)
        self.keys, self.values = (
            [self._random(p.start + p.count, KV_HEADS, generator, dtype) for p in pieces] for _ in range(2)
        )
        self.queries = [self._random(p.count, HEADS, generator, dtype) for p in pieces]
        for piece, keys, values in zip(pieces, self.keys, self.values, strict=True):
            slots = [piece.slot(place) for place in range(piece.start)]
            self.pool.keys[0, :, slots] = keys[: piece.start].transpose(0, 1)
            self.pool.values[0, :, slots] = values[: piece.start].transpose(0, 1)

    @staticmethod
    def _random(count: int, heads: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        return torch.randn(count, heads, HEAD_DIM, generator=generator).to(dtype)

    def run(self, backend: str = "sdpa") -> list[Tensor]:
        made: Any = BACKENDS[backend](self.pool)
        ends = list(accumulate(piece.count for piece in self.pieces))
        layout = Layout((0, *ends[:-1]), ends[-1])
        writer = BatchWriter(BLOCK, self.pool.scratch_slot)
        batch = writer.write([piece.row() for piece in self.pieces], layout)
        fresh = [
            torch.cat([tensor[piece.start :] for piece, tensor in zip(self.pieces, tensors, strict=True)])
            for tensors in (self.keys, self.values)
        ]
        out: Tensor = attended(made.plan(batch), 0, torch.cat(self.queries), *fresh)
        return [out[span.first : span.last] for span in batch.spans]

    def expected(self, index: int) -> Tensor:
        """Plain attention with a boolean mask over all places in their order, in float64."""
        piece = self.pieces[index]
        num_places = piece.start + piece.count
        slots = [piece.slot(place) for place in range(num_places)]
        group = HEADS // KV_HEADS
        keys, values = (
            pool[0][:, slots].double().repeat_interleave(group, dim=0)
            for pool in (self.pool.keys, self.pool.values)
        )
        sees = torch.zeros(piece.count, num_places, dtype=torch.bool)
        for row, seen in enumerate(piece.seen):
            sees[row, list(seen)] = True
        scores = torch.einsum("rhd,hkd->hrk", self.queries[index].double(), keys) / math.sqrt(HEAD_DIM)
        weights = scores.masked_fill(~sees, -math.inf).softmax(-1)
        return torch.einsum("hrk,hkd->rhd", weights, values).flatten(1)


@every_backend
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_trees_equal_a_plain_mask(seed: int, scattered: bool, backend: str) -> None:
    """Trees and texts in one batch, any shapes, any blocks."""
    rng = random.Random(seed)
    tables = block_tables(rng, 3, scattered=scattered)
    kinds = [tree, rng.choice([tree, text]), text]
    rng.shuffle(kinds)
    forward = Forward([kind(rng, tables[i], i) for i, kind in enumerate(kinds)], seed)
    for index, got in enumerate(forward.run(backend)):
        torch.testing.assert_close(got.double(), forward.expected(index), rtol=1e-5, atol=1e-5)


@every_backend
@pytest.mark.parametrize("scattered", [False, True])
def test_a_row_alone_equals_the_row_in_company(scattered: bool, backend: str) -> None:
    rng = random.Random(7)
    blocks = block_tables(rng, 1, scattered=scattered)[0]
    whole = tree(rng, blocks, 1, count=12)
    together = Forward([whole], 1)
    results = together.run(backend)[0]
    for row in range(whole.count):
        # The rows before it lie in the pool by now; only its own is computed again.
        alone = replace(whole, start=whole.start + row, count=1, seen=[whole.seen[row]])
        forward = Forward([alone], 1)
        forward.pool = together.pool
        forward.queries = [together.queries[0][row : row + 1]]
        forward.keys = [together.keys[0][: whole.start + row + 1]]
        forward.values = [together.values[0][: whole.start + row + 1]]
        got = forward.run(backend)[0]
        torch.testing.assert_close(got[0], results[row], rtol=1e-5, atol=1e-5)


@every_backend
def test_no_row_sees_a_sibling_a_cousin_or_a_stranger(backend: str) -> None:
    """What a row may not see is replaced by garbage: nothing changes, to the bit."""
    rng = random.Random(11)
    piece = tree(rng, block_tables(rng, 1, scattered=True)[0], 2, count=12)
    clean = Forward([piece], 3).run(backend)[0]
    for row in range(piece.count):
        spoilt = Forward([piece], 3)
        hidden = sorted(set(range(piece.start + piece.count)) - piece.seen[row])
        assert hidden, "every node is an ancestor: draw another tree"
        for tensors in (spoilt.keys, spoilt.values):
            tensors[0][hidden] = GARBAGE
        slots = [piece.slot(place) for place in hidden if place < piece.start]
        spoilt.pool.keys[0, :, slots] = GARBAGE
        spoilt.pool.values[0, :, slots] = GARBAGE
        assert torch.equal(spoilt.run(backend)[0][row], clean[row])


@every_backend
def test_every_ancestor_and_all_of_the_prefix_are_seen(backend: str) -> None:
    """Changing any one slot that a row may see changes the row."""
    rng = random.Random(12)
    piece = tree(rng, block_tables(rng, 1, scattered=False)[0], 0, count=6)
    clean = Forward([piece], 4).run(backend)[0]
    for place in range(piece.start):
        changed = Forward([piece], 4)
        changed.pool.values[0, :, piece.slot(place)] += 3.0
        differs = (changed.run(backend)[0] != clean).any(1).tolist()
        assert differs == [place in seen for seen in piece.seen]


@every_backend
def test_a_chain_is_the_simplest_tree(backend: str) -> None:
    """Branches that form one path give what an ordinary span gives."""
    blocks, start, count = list(range(20)), 30, 7
    seen = [set(range(start + row + 1)) for row in range(count)]
    chain = Piece(blocks, start, count, seen, start, SHAPE.tree_start(1), tuple(range(count)))
    as_tree = Forward([chain], 5).run(backend)[0]
    as_text = Forward([Piece(blocks, start, count, seen)], 5).run(backend)[0]
    torch.testing.assert_close(as_tree, as_text, rtol=1e-6, atol=1e-6)


def test_bfloat16_trees() -> None:
    rng = random.Random(13)
    forward = Forward(
        [tree(rng, blocks, i) for i, blocks in enumerate(block_tables(rng, 2, scattered=True))],
        6,
        torch.bfloat16,
    )
    for index, got in enumerate(forward.run()):
        torch.testing.assert_close(got.double(), forward.expected(index), rtol=2e-2, atol=2e-2)


LONG = replace(SHAPE, num_blocks=400)
"""Texts of more than a split."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_prefix", [1, 37, 508, 511, 512, 700, 1023])
def test_deterministic_nodes_have_the_bits_of_texts(num_prefix: int, dtype: torch.dtype) -> None:
    """Each path of a tree as a text of its own, in other blocks, alone: the same bits for its last token."""
    rng, generator = random.Random(num_prefix), torch.Generator().manual_seed(num_prefix)
    pool = KVPool(replace(LONG, dtype=dtype))
    parents = [rng.randrange(-1, node) if rng.random() < 0.5 else node - 1 for node in range(40)]
    queries = torch.randn(40, HEADS, HEAD_DIM, generator=generator).to(dtype)
    prefix, nodes = (
        [torch.randn(count, KV_HEADS, HEAD_DIM, generator=generator).to(dtype) for _ in range(2)]
        for count in (num_prefix, 40)
    )
    blocks = rng.sample(range(LONG.num_blocks), -(-(num_prefix + 40) // BLOCK))
    _write(pool, [_slot_in(blocks, place) for place in range(num_prefix)], prefix)
    paths = [path_to(parents, node) for node in range(40)]
    bits = [sum(1 << each for each in path) for path in paths]
    branches = Branches(
        [num_prefix + len(path) - 1 for path in paths], num_prefix, LONG.tree_start(2), range(40), bits
    )
    row = PlainInput([0] * 40, 0, blocks, 0, generated=True, branches=branches)
    together = _attended(pool, row, queries, nodes)
    for node in range(40):
        own = list(range(len(blocks))) if node % 2 else rng.sample(range(LONG.num_blocks), len(blocks))
        before = [torch.cat((a, b[list(paths[node][:-1])])) for a, b in zip(prefix, nodes, strict=True)]
        _write(pool, [_slot_in(own, place) for place in range(len(before[0]))], before)
        alone = PlainInput([0], len(before[0]), own, 0, generated=True)
        got = _attended(pool, alone, queries[node : node + 1], [each[node : node + 1] for each in nodes])
        assert torch.equal(got[0], together[node])


def _slot_in(blocks: list[int], place: int) -> int:
    return blocks[place // BLOCK] * BLOCK + place % BLOCK


def _write(pool: KVPool, slots: list[int], contents: list[Tensor]) -> None:
    for tensor, content in zip((pool.keys, pool.values), contents, strict=True):
        tensor[0, :, slots] = content.transpose(0, 1)


def _attended(pool: KVPool, row: PlainInput, queries: Tensor, fresh: list[Tensor]) -> Tensor:
    backend = SdpaBackend(pool, HEADS, deterministic=True)
    batch = BatchWriter(BLOCK, pool.scratch_slot).write([row], Layout((0,), len(row.tokens)))
    return attended(backend.plan(batch), 0, queries, *fresh)
