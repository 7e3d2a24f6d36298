"""Assigns tokens to rows of a batch, and tiles the rows for linears.

Knows the two layouts: packed (no padding, one tile) and tiled (deterministic mode). Pure: no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.attention.inputs import Layout, SequenceInput


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows per tile in deterministic mode."""

    decode: int
    prefill: int


def packed_layout(rows: Sequence[SequenceInput]) -> Layout:
    first_rows, num_rows = _place(rows, range(len(rows)), 0)
    return Layout(tuple(first_rows[index] for index in range(len(rows))), num_rows)


def tiled_layout(rows: Sequence[SequenceInput], tiling: Tiling) -> Layout:
    """Generated tokens first, in whole tiles of one size, then prompt tokens in tiles of another.

    So the size of a token's tile depends only on whether it is generated, not on the other rows. The head
    processes all rows in decode tiles.
    """
    generated = [index for index, row in enumerate(rows) if row.generated]
    prompts = [index for index, row in enumerate(rows) if not row.generated]
    first_rows, end = _place(rows, generated, 0)
    decode_tiles = _tiles(end, tiling.decode)
    padded = sum(decode_tiles)
    prompt_rows, end = _place(rows, prompts, padded)
    first_rows.update(prompt_rows)
    tiles = decode_tiles + _tiles(end - padded, tiling.prefill)
    head_tiles = _tiles(sum(row.num_logits for row in rows), tiling.decode)
    return Layout(
        tuple(first_rows[index] for index in range(len(rows))),
        sum(tiles),
        tiles,
        num_wanted=sum(head_tiles),
        head_tiles=head_tiles,
    )


def _tiles(num_rows: int, size: int) -> tuple[int, ...]:
    return (size,) * -(-num_rows // size)


def _place(rows: Sequence[SequenceInput], order: Sequence[int], start: int) -> tuple[dict[int, int], int]:
    first_rows: dict[int, int] = {}
    for index in order:
        first_rows[index] = start
        start += len(rows[index].tokens)
    return first_rows, start
