"""Rows of a tree see trunk, ancestors and themselves: the backend against a plain mask in float64."""

import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ssd.attention import sdpa
from ssd.attention.backend import Branches, Span
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE, QUERY_TILE, SdpaBackend
from ssd.kvcache.pool import KVPool, PoolShape

HEADS, KV_HEADS, HEAD_DIM, BLOCK, NUM_BLOCKS = 6, 2, 32, 4, 128
CPU = torch.device("cpu")
GARBAGE = 1e4
"""In every slot that no row may see. Not NaN: a masked value is multiplied by 0, and 0 · NaN is NaN."""


@pytest.fixture(autouse=True, params=[8, 256])
def least_trunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trunks apart from the rest, and under one mask with it."""
    monkeypatch.setattr(sdpa, "LEAST_TRUNK", request.param)


@dataclass
class Piece:
    """One sequence's share of a forward: `start` slots are there already, `count` rows come."""

    blocks: list[int]
    start: int
    count: int
    seen: list[set[int]]
    """Of each row, the slots it sees, its own among them."""
    branches: Branches | None = None


def text(rng: random.Random, blocks: list[int]) -> Piece:
    """An ordinary span: a prompt's chunk or a row to decode."""
    start, count = rng.choice([(0, rng.randint(1, 80)), (rng.randint(1, 90), rng.choice([1, 1, 5, 70]))])
    return Piece(blocks, start, count, [set(range(start + row + 1)) for row in range(count)])


def tree(rng: random.Random, blocks: list[int], *, count: int | None = None) -> Piece:
    """A trunk, nodes behind it in random order of growth, and rows whose parents are any of these."""
    num_trunk, num_grown = rng.randint(1, 60), rng.randint(0, 40)
    count = count or rng.choice([1, 2, 12, 12, QUERY_TILE + 3])
    above: list[list[int]] = []
    for node in range(num_grown + count):
        # Parents of rows are mostly there before; the same forward may hold a parent and its child as well.
        last = node if rng.random() < 0.2 else min(node, num_grown)
        parent = rng.randint(-1, last - 1) if last else -1
        above.append([num_trunk + parent, *above[parent]] if parent >= 0 else [])
    start = num_trunk + num_grown
    rows = above[num_grown:]
    trunk = set(range(num_trunk))
    seen = [trunk | set(ancestors) | {start + row} for row, ancestors in enumerate(rows)]
    positions = [num_trunk + len(ancestors) for ancestors in rows]
    return Piece(blocks, start, count, seen, Branches(positions, num_trunk, rows))


def block_tables(rng: random.Random, count: int, *, scattered: bool) -> list[list[int]]:
    numbers = list(range(NUM_BLOCKS))
    if scattered:
        rng.shuffle(numbers)
    share = NUM_BLOCKS // count
    return [numbers[index * share : (index + 1) * share] for index in range(count)]


def slot_of(piece: Piece, place: int) -> int:
    return piece.blocks[place // BLOCK] * BLOCK + place % BLOCK


class Forward:
    """Pieces with random queries, keys and values; what is there before is already in the pool."""

    def __init__(self, pieces: list[Piece], seed: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pieces = pieces
        self.pool = KVPool(
            PoolShape(1, KV_HEADS, HEAD_DIM, NUM_BLOCKS, BLOCK, dtype, CPU, DETERMINISTIC_KEY_TILE)
        )
        self.pool.keys.fill_(GARBAGE)
        self.pool.values.fill_(GARBAGE)
        self.keys, self.values = (
            [self._random(p.start + p.count, KV_HEADS, generator, dtype) for p in pieces] for _ in range(2)
        )
        self.queries = [self._random(p.count, HEADS, generator, dtype) for p in pieces]
        for piece, keys, values in zip(pieces, self.keys, self.values, strict=True):
            slots = [slot_of(piece, place) for place in range(piece.start)]
            self.pool.keys[0, :, slots] = keys[: piece.start].transpose(0, 1)
            self.pool.values[0, :, slots] = values[: piece.start].transpose(0, 1)

    @staticmethod
    def _random(count: int, heads: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        return torch.randn(count, heads, HEAD_DIM, generator=generator).to(dtype)

    def run(self, *, deterministic: bool = False) -> list[Tensor]:
        backend = SdpaBackend(self.pool, HEADS, deterministic=deterministic)
        spans, row = [], 0
        for piece in self.pieces:
            spans.append(Span(row, piece.count, piece.start, piece.blocks, piece.branches))
            row += piece.count
        fresh = [
            torch.cat([tensor[piece.start :] for piece, tensor in zip(self.pieces, tensors, strict=True)])
            for tensors in (self.keys, self.values)
        ]
        out = backend.plan(spans, row).attend(0, torch.cat(self.queries), *fresh)
        return [out[span.row : span.row + span.count] for span in spans]

    def expected(self, index: int) -> Tensor:
        """Plain attention with a boolean mask over the pages, gathered in the table's order, in float64."""
        piece = self.pieces[index]
        num_slots = piece.start + piece.count
        slots = [slot_of(piece, place) for place in range(num_slots)]
        group = HEADS // KV_HEADS
        keys, values = (
            pool[0][:, slots].double().repeat_interleave(group, dim=0)
            for pool in (self.pool.keys, self.pool.values)
        )
        sees = torch.zeros(piece.count, num_slots, dtype=torch.bool)
        for row, seen in enumerate(piece.seen):
            sees[row, list(seen)] = True
        scores = torch.einsum("rhd,hkd->hrk", self.queries[index].double(), keys) / math.sqrt(HEAD_DIM)
        weights = scores.masked_fill(~sees, -math.inf).softmax(-1)
        return torch.einsum("hrk,hkd->rhd", weights, values).flatten(1)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_trees_equal_a_plain_mask(seed: int, scattered: bool, deterministic: bool) -> None:
    """Trees and texts in one batch, any shapes, any blocks."""
    rng = random.Random(seed)
    tables = block_tables(rng, 3, scattered=scattered)
    kinds = [tree, rng.choice([tree, text]), text]
    rng.shuffle(kinds)
    forward = Forward([kind(rng, blocks) for kind, blocks in zip(kinds, tables, strict=True)], seed)
    for index, got in enumerate(forward.run(deterministic=deterministic)):
        torch.testing.assert_close(got.double(), forward.expected(index), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_row_alone_equals_the_row_in_company(scattered: bool, deterministic: bool) -> None:
    rng = random.Random(7)
    blocks = block_tables(rng, 1, scattered=scattered)[0]
    whole = tree(rng, blocks, count=12)
    together = Forward([whole], 1)
    results = together.run(deterministic=deterministic)[0]
    assert whole.branches is not None
    for row in range(whole.count):
        # The rows before it lie in the pool by now; only its own is computed again.
        branches = Branches(
            [whole.branches.positions[row]], whole.branches.num_trunk, [whole.branches.ancestors[row]]
        )
        alone = Piece(blocks, whole.start + row, 1, [whole.seen[row]], branches)
        forward = Forward([alone], 1)
        forward.pool = together.pool
        forward.queries = [together.queries[0][row : row + 1]]
        forward.keys = [together.keys[0][: whole.start + row + 1]]
        forward.values = [together.values[0][: whole.start + row + 1]]
        got = forward.run(deterministic=deterministic)[0]
        torch.testing.assert_close(got[0], results[row], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_no_row_sees_a_sibling_a_cousin_or_a_stranger(deterministic: bool) -> None:
    """What a row may not see is replaced by garbage: nothing changes, to the bit."""
    rng = random.Random(11)
    piece = tree(rng, block_tables(rng, 1, scattered=True)[0], count=12)
    clean = Forward([piece], 3).run(deterministic=deterministic)[0]
    for row in range(piece.count):
        spoilt = Forward([piece], 3)
        hidden = sorted(set(range(piece.start + piece.count)) - piece.seen[row])
        assert hidden, "every node is an ancestor: draw another tree"
        for tensors in (spoilt.keys, spoilt.values):
            tensors[0][hidden] = GARBAGE
        slots = [slot_of(piece, place) for place in hidden if place < piece.start]
        spoilt.pool.keys[0, :, slots] = GARBAGE
        spoilt.pool.values[0, :, slots] = GARBAGE
        assert torch.equal(spoilt.run(deterministic=deterministic)[0][row], clean[row])


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_ancestor_and_all_of_the_trunk_are_seen(deterministic: bool) -> None:
    """Changing any one slot that a row may see changes the row."""
    rng = random.Random(12)
    piece = tree(rng, block_tables(rng, 1, scattered=False)[0], count=6)
    clean = Forward([piece], 4).run(deterministic=deterministic)[0]
    for place in range(piece.start):
        changed = Forward([piece], 4)
        changed.pool.values[0, :, slot_of(piece, place)] += 3.0
        differs = (changed.run(deterministic=deterministic)[0] != clean).any(1).tolist()
        assert differs == [place in seen for seen in piece.seen]


def test_a_chain_is_the_simplest_tree() -> None:
    """Branches that form one path give what an ordinary span gives."""
    blocks, start, count = list(range(20)), 30, 7
    rows = [list(range(start, start + row)) for row in range(count)]
    branches = Branches(list(range(start, start + count)), start, rows)
    seen = [set(range(start + row + 1)) for row in range(count)]
    as_tree = Forward([Piece(blocks, start, count, seen, branches)], 5).run()[0]
    as_text = Forward([Piece(blocks, start, count, seen)], 5).run()[0]
    torch.testing.assert_close(as_tree, as_text, rtol=1e-6, atol=1e-6)


def test_bfloat16_trees() -> None:
    rng = random.Random(13)
    forward = Forward(
        [tree(rng, blocks) for blocks in block_tables(rng, 2, scattered=True)], 6, torch.bfloat16
    )
    for index, got in enumerate(forward.run()):
        torch.testing.assert_close(got.double(), forward.expected(index), rtol=2e-2, atol=2e-2)
