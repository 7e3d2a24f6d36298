"""Deterministic mode: a row's bits depend on its own text alone, whatever is computed beside it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ssd.attention.batch import BatchWriter
from ssd.attention.fused import FusedBackend
from ssd.attention.inputs import Layout, PlainInput
from ssd.attention.rotation import Rotation
from ssd.kernels import rows, tiles
from ssd.kvcache.pool import KVPool, PoolShape

HEADS, KV_HEADS, HEAD_DIM, PAGE, LONG = 4, 2, 32, 16, 150
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short text has many."""
    monkeypatch.setattr(tiles, "FIXED_SPLIT", 64)
    monkeypatch.setattr(tiles, "_LEAST_SPLIT", 32)


class Texts:
    """Two texts whose keys are all there; any rows of them are computed again, and write the same."""

    def __init__(self, dtype: torch.dtype, *, deterministic: bool = True) -> None:
        generator = torch.Generator().manual_seed(3)
        count = 2 * LONG
        size = (count, HEADS + 2 * KV_HEADS, HEAD_DIM)
        self._projected = torch.randn(size, generator=generator).to(dtype)
        self._angles = torch.randn(count, 1, HEAD_DIM // 2, generator=generator)
        rotated = Rotation(self._angles.cos(), self._angles.sin()).apply(self._projected)
        per_text = -(-LONG // PAGE)
        self.blocks = [list(range(per_text)), list(range(2 * per_text, per_text, -1))]
        self.pool = KVPool(
            PoolShape(1, KV_HEADS, HEAD_DIM, 2 * per_text + 1, PAGE, dtype, CPU, spare_slots=PAGE)
        )
        self._backend = FusedBackend(self.pool, HEADS, deterministic=deterministic)
        for text, blocks in enumerate(self.blocks):
            slots = [blocks[place // PAGE] * PAGE + place % PAGE for place in range(LONG)]
            of_text = slice(text * LONG, (text + 1) * LONG)
            self.pool.keys[0][:, slots] = rotated[of_text, HEADS : HEADS + KV_HEADS].transpose(0, 1)
            self.pool.values[0][:, slots] = self._projected[of_text, HEADS + KV_HEADS :].transpose(0, 1)

    def run(self, *pieces: tuple[int, int, int], width: int | None = None) -> list[Tensor]:
        """Of each (text, start, count) what its rows get; tables have at least `width` blocks."""
        rows = [
            PlainInput(
                [0] * count, start, self.blocks[text][: -(-(start + count) // PAGE)], 0, generated=True
            )
            for text, start, count in pieces
        ]
        counts = [count for _, _, count in pieces]
        firsts = tuple(sum(counts[:index]) for index in range(len(counts)))
        layout = Layout(firsts, sum(counts), num_blocks=width)
        batch = BatchWriter(PAGE, self.pool.scratch_slot).write(rows, layout)
        places = [text * LONG + start + row for text, start, count in pieces for row in range(count)]
        angles = self._angles[places]
        heads, values = torch.split(self._projected[places], [HEADS + KV_HEADS, KV_HEADS], dim=1)
        out = self._backend.plan(batch).attend(0, heads, values, Rotation(angles.cos(), angles.sin()))
        return list(torch.split(out, counts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_alone_has_the_bits_of_the_row_in_company(dtype: torch.dtype) -> None:
    texts = Texts(dtype)
    together = texts.run((0, 61, 5), (1, 127, 3), (1, 0, 2))
    for row in range(5):
        assert torch.equal(texts.run((0, 61 + row, 1))[0][0], together[0][row])
    for row in range(3):
        # In another place of its tile, with wider tables: more splits, all of them empty.
        moved = texts.run((0, 40, 5), (1, 123 + row, 5), width=20)[1]
        assert torch.equal(moved[4], together[1][row])


def test_a_chunk_has_the_bits_of_its_halves() -> None:
    texts = Texts(torch.float32)
    whole = texts.run((0, 50, 36))[0]
    assert torch.equal(torch.cat((texts.run((0, 50, 13))[0], texts.run((0, 63, 23))[0])), whole)


def test_rows_beyond_what_parts_may_take_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Texts(torch.float32)
    whole = texts.run((0, 100, 9), (1, 50, 9))
    monkeypatch.setattr(tiles, "_PART_BYTES", 4 * 3 * HEADS * HEAD_DIM * 4)
    pieces = texts.run((0, 100, 9), (1, 50, 9))
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


def test_what_no_part_wrote_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is merely allocated may hold anything."""
    texts = Texts(torch.float32)
    plain = texts.run((0, 100, 3), (1, 5, 2), width=20)

    def filled(*size: Any, **how: Any) -> Tensor:
        return torch.full(size[0] if isinstance(size[0], tuple) else size, torch.nan, **how)

    monkeypatch.setattr(torch, "empty", filled)
    again = texts.run((0, 100, 3), (1, 5, 2), width=20)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_without_it_splits_follow_the_tables() -> None:
    """So that the tests above could fail."""
    texts = Texts(torch.float32, deterministic=False)
    narrow, wide = texts.run((1, 149, 1))[0], texts.run((1, 149, 1), width=20)[0]
    torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=1e-5)
    assert not torch.equal(narrow, wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms_and_activations_of_a_row_do_not_depend_on_other_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    hidden, delta, gate_up = (torch.randn(9, 2 * 1100, generator=generator).to(dtype) for _ in range(3))
    weight = torch.rand(2 * 1100, generator=generator).to(dtype)
    added, normed = rows.add_norm(hidden, delta, weight, 1e-6)
    activated = rows.silu_mul(gate_up)
    for row in range(9):
        alone = slice(row, row + 1)
        found = rows.add_norm(hidden[alone], delta[alone], weight, 1e-6)
        assert torch.equal(torch.cat(found), torch.cat((added[alone], normed[alone])))
        assert torch.equal(rows.silu_mul(gate_up[alone]), activated[alone])
