"""Which row of the hidden state each token takes, and how rows are tiled for linears.

Knows the two layouts: packed (no padding, one tile) and tiled (deterministic mode).
Pure: no tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.runtime.runner import RunnerRow


@dataclass(frozen=True, slots=True)
class Layout:
    first_row: tuple[int, ...]
    """Of each runner row's first token."""
    num_rows: int
    """With padding."""
    tiles: tuple[int, ...]
    """Row counts of the tiles, or empty: all rows at once."""


def packed_layout(rows: Sequence[RunnerRow]) -> Layout:
    first_row, num_rows = _place(rows, range(len(rows)), 0)
    return Layout(tuple(first_row[index] for index in range(len(rows))), num_rows, ())


def tiled_layout(rows: Sequence[RunnerRow], *, decode_tile: int, prefill_tile: int) -> Layout:
    """Generated tokens first, in whole tiles of one size, then prompt tokens in tiles of another.

    A token's tile size then depends on what it is, never on what is computed beside it.
    """
    generated = [index for index, row in enumerate(rows) if row.generated]
    prompts = [index for index, row in enumerate(rows) if not row.generated]
    first_row, end = _place(rows, generated, 0)
    num_decode_tiles = -(-end // decode_tile)
    padded = num_decode_tiles * decode_tile
    prompt_rows, end = _place(rows, prompts, padded)
    first_row.update(prompt_rows)
    num_prefill_tiles = -(-(end - padded) // prefill_tile)
    return Layout(
        tuple(first_row[index] for index in range(len(rows))),
        padded + num_prefill_tiles * prefill_tile,
        (decode_tile,) * num_decode_tiles + (prefill_tile,) * num_prefill_tiles,
    )


def _place(rows: Sequence[RunnerRow], order: Sequence[int], start: int) -> tuple[dict[int, int], int]:
    first_row: dict[int, int] = {}
    for index in order:
        first_row[index] = start
        start += len(rows[index].tokens)
    return first_row, start
