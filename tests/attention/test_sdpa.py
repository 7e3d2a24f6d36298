"""The paged backend equals plain attention, and its rows do not depend on each other's company."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.inputs import Layout, PlainInput
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE, QUERY_TILE, SdpaBackend
from ssd.kvcache.pool import KVPool, PoolShape
from tests.attention.attended import attended

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 32, 16
CPU = torch.device("cpu")


def make_pool(num_blocks: int, dtype: torch.dtype = torch.float32, *, garbage: float = 0.0) -> KVPool:
    pool = KVPool(PoolShape(1, KV_HEADS, HEAD_DIM, num_blocks, BLOCK, dtype, CPU, DETERMINISTIC_KEY_TILE))
    # What a slot held before must not matter.
    pool.keys.fill_(garbage)
    pool.values.fill_(garbage)
    return pool


def reference(queries: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Rows at start, start+1, … over all keys of one sequence, in float64, without tricks."""
    group = HEADS // KV_HEADS
    keys, values = (t.double().repeat_interleave(group, dim=1) for t in (keys, values))
    scores = torch.einsum("rhd,khd->hrk", queries.double(), keys) / math.sqrt(HEAD_DIM)
    positions = torch.arange(start, start + queries.shape[0]).unsqueeze(1)
    scores = scores.masked_fill(torch.arange(keys.shape[0]) > positions, -math.inf)
    return torch.einsum("hrk,khd->rhd", scores.softmax(-1), values).flatten(1)


def batch_of(backend: SdpaBackend, rows: list[PlainInput], *, padding: int = 0) -> Batch:
    ends = list(accumulate(len(row.tokens) for row in rows))
    layout = Layout((0, *ends[:-1]), ends[-1] + padding)
    return BatchWriter(BLOCK, backend._pool.scratch_slot).write(rows, layout)


class Sequences:
    """Sequences with random keys, values and queries, written chunk by chunk."""

    def __init__(
        self, lengths: list[int], tables: list[list[int]], dtype: torch.dtype = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))
        self.tables = tables
        shapes = [(length, heads, HEAD_DIM) for length in lengths for heads in (HEADS, KV_HEADS, KV_HEADS)]
        drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        self.queries, self.keys, self.values = drawn[0::3], drawn[1::3], drawn[2::3]

    def run(self, backend: SdpaBackend, pieces: list[tuple[int, int, int]], padding: int = 0) -> list[Tensor]:
        """One forward of (sequence, start, count) pieces; what each piece's rows got."""
        written = [
            PlainInput([0] * count, start, self.tables[i], 0, generated=True) for i, start, count in pieces
        ]
        batch = batch_of(backend, written, padding=padding)
        plan = backend.plan(batch)

        def rows(tensors: list[Tensor]) -> Tensor:
            parts = [tensors[index][start : start + count] for index, start, count in pieces]
            return torch.cat([*parts, torch.full((padding, *tensors[0].shape[1:]), 7.0).to(tensors[0].dtype)])

        out = attended(plan, 0, rows(self.queries), rows(self.keys), rows(self.values))
        return [out[span.first : span.last] for span in batch.spans]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("consecutive", [True, False])
def test_ragged_batch_equals_plain_attention(deterministic: bool, consecutive: bool) -> None:
    lengths = [1, 17, 40, 150]
    tables = [[0], [1, 2], [3, 4, 5], list(range(6, 16))]
    if not consecutive:
        tables = [[9], [4, 1], [2, 0, 15], [3, 14, 5, 13, 6, 12, 7, 11, 8, 10]]
    sequences = Sequences(lengths, tables)
    backend = SdpaBackend(make_pool(16, garbage=1e4), HEADS, deterministic=deterministic)
    results = sequences.run(backend, [(i, 0, n) for i, n in enumerate(lengths)], padding=3)
    for index, got in enumerate(results):
        expected = reference(sequences.queries[index], sequences.keys[index], sequences.values[index], 0)
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_prefix_apart_equals_plain_attention(deterministic: bool, dtype: torch.dtype) -> None:
    """Chunks and verifications whose rows share a long context, beside one that has none."""
    sequences = Sequences([1100, 30], [list(range(70)), [72, 71]], dtype)
    backend = SdpaBackend(make_pool(73, dtype, garbage=1e4), HEADS, deterministic=deterministic)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    start = 0
    for size in (250, 9, 300, 450, 5, 17, 60, 9):
        beside = [(1, 0, 30)] if start == 0 else [(1, 21, 9)]
        got = sequences.run(backend, [(0, start, size), *beside])[0]
        queries = sequences.queries[0][start : start + size]
        keys, values = (each[0][: start + size] for each in (sequences.keys, sequences.values))
        expected = reference(queries, keys, values, start)
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
        start += size


@pytest.mark.parametrize("deterministic", [False, True])
def test_masks_are_as_wide_as_what_rows_do_not_share(deterministic: bool) -> None:
    """Nine rows at 16k were planned with a mask over all keys: a hundred times as long as one row."""
    backend = SdpaBackend(make_pool(1024), HEADS, deterministic=deterministic)
    for start, count in ((16_000, 9), (16_380, 3), (15_800, 500)):
        row = PlainInput([0] * count, start, range(1024), 0, generated=True)
        [sequence] = backend.plan(batch_of(backend, [row]))._sequences
        widest = max(tile.mask.shape[-1] for tile in sequence.tiles if tile.mask is not None)
        assert widest <= (DETERMINISTIC_KEY_TILE if deterministic else QUERY_TILE)


def test_blocks_are_read_in_table_order_not_by_number() -> None:
    sequences = Sequences([33], [[2, 0, 1]])
    got = sequences.run(SdpaBackend(make_pool(3), HEADS), [(0, 0, 33)])[0]
    expected = reference(sequences.queries[0], sequences.keys[0], sequences.values[0], 0)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_padding_rows_write_no_real_slot() -> None:
    pool = make_pool(4)
    Sequences([5], [[1]]).run(SdpaBackend(pool, HEADS), [(0, 0, 5)], padding=11)
    written = pool.keys[0, 0].abs().sum(-1).nonzero().flatten().tolist()
    assert written == [*range(16, 21), pool.scratch_slot]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_deterministic_rows_across_splits_of_keys(dtype: torch.dtype) -> None:
    """Rows on both sides of 512 and 1024 keys: alone, in chunks, and with keys scattered over the pool."""
    length, table = 1060, list(range(67))
    scattered = [(17 * block + 3) % 67 for block in table]
    results = []
    for blocks, sizes in ((table, [1] * length), (table, [500, 20, 540]), (scattered, [length])):
        sequences = Sequences([length], [blocks], dtype)
        backend = SdpaBackend(make_pool(67, dtype), HEADS, deterministic=True)
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        parts = [sequences.run(backend, [(0, a, n)])[0] for a, n in zip(starts, sizes, strict=True)]
        results.append(torch.cat(parts))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_broken_neighbour_breaks_nobody_else() -> None:
    """Deterministic attention reads whole splits of keys, so past its own: NaN there must not matter."""
    expected = None
    for poison in (0.0, float("nan"), float("inf")):
        sequences = Sequences([20, 20], [[0, 1], [2, 3]])
        sequences.keys[1][3:9] += poison
        sequences.values[1][3:9] += poison
        backend = SdpaBackend(make_pool(4), HEADS, deterministic=True)
        sequences.run(backend, [(1, 0, 20)])
        mine = sequences.run(backend, [(0, 0, 20)])[0]
        expected = mine if expected is None else expected
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("start", [0, 300], ids=["one mask", "a prefix apart"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_a_refused_token_left_reaches_no_row_before_it(start: int, poison: float) -> None:
    """Drafted tokens are verified in one tile: the last is masked for the others, and a masked NaN is NaN."""
    found = []
    for added in (0.0, poison):
        sequences = Sequences([start + 9], [list(range(20))])
        sequences.keys[0][-1] += added
        sequences.values[0][-1] += added
        backend = SdpaBackend(make_pool(20), HEADS)
        if start:
            sequences.run(backend, [(0, 0, start)])
        found.append(sequences.run(backend, [(0, start, 9)])[0][:-1])
    assert torch.equal(*found)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_rows_are_bitwise_independent_of_chunks_and_company(data: st.DataObject) -> None:
    """Deterministic key tiles: one row at a time = any chunking = any batch, in bfloat16 and float32."""
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    length = data.draw(st.integers(2, 2 * QUERY_TILE + 20))
    other = data.draw(st.integers(1, 90))
    tables = [list(range(10)), [15, 11, 14, 12, 16, 13]]
    sequences = Sequences([length, other], tables, dtype)

    def by_pieces(sizes: list[int], *, with_other: bool) -> Tensor:
        backend = SdpaBackend(make_pool(17, dtype), HEADS, deterministic=True)
        parts, start = [], 0
        for size in sizes:
            company = [(1, 0, other)] if with_other else []
            parts.append(sequences.run(backend, [*company, (0, start, size)])[-1])
            start += size
        return torch.cat(parts)

    cut = data.draw(st.integers(1, length - 1))
    single = by_pieces([1] * length, with_other=False)
    assert torch.equal(single, by_pieces([length], with_other=True))
    assert torch.equal(single, by_pieces([cut, length - cut], with_other=True))
