"""Launches paged attention: one or two kernels per layer, after one per step that finds the tiles.

Knows the kernels' arguments. Does not know batches or models. Reads no value on the host, so a step can be
captured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ssd.kernels import attend
from ssd.kernels.language import is_hip, launching_on
from ssd.kernels.tiles import AttentionShape, AttentionTiles, attention_tiles, most_tiles

_LOG2_E = 1.4426950408889634
_MOST_ROWS = 1 << 14
"""Most rows whose tiles one program can find."""
_NO_GPU_PROCESSORS = 108
_STAGES = 2
"""Pipeline stages: blocks of keys that are being loaded or used."""


@dataclass(frozen=True, slots=True)
class VisibleKeys:
    """Which keys each row sees. Rows of a sequence are adjacent."""

    sequences: Tensor  # [rows], like the next
    seen: Tensor  # leading keys of the sequence's table
    paths: Tensor  # [rows, words]: bits of nodes
    tables: Tensor  # [sequences, pages]
    tree_starts: Tensor  # [sequences]
    page: int
    num_nodes: int
    """Tree slots of each tree; 0: there are no trees."""

    def rows(self, rows: slice) -> "VisibleKeys":
        return VisibleKeys(
            self.sequences[rows],
            self.seen[rows],
            self.paths[rows],
            self.tables,
            self.tree_starts,
            self.page,
            self.num_nodes,
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    rows: slice
    visible: VisibleKeys
    firsts: Tensor


class PagedAttention:
    """The attention of one forward, prepared once for all layers."""

    def __init__(self, visible: VisibleKeys, shape: AttentionShape, *, deterministic: bool) -> None:
        self._shape = shape
        self._tiles = attention_tiles(
            shape,
            num_processors=_num_processors(visible.tables.device),
            is_hip=is_hip(),
            deterministic=deterministic,
        )
        self._pieces = tuple(self._prepared(visible))

    def _prepared(self, visible: VisibleKeys) -> Iterator[_Piece]:
        step = min(self._tiles.rows_at_once, _MOST_ROWS)
        for start in range(0, self._shape.num_rows, step):
            rows = slice(start, start + step)
            part = visible.rows(rows)
            width = self._tiles.rows(self._shape.group)
            yield _Piece(rows, part, tile_starts(part.sequences, len(visible.tables), width))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attends queries [rows, heads, d] to keys and values [kv_heads, slots, d]; [rows, heads · d]."""
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        with launching_on(queries):
            for piece in self._pieces:
                rows = piece.rows
                _attend(queries[rows], keys, values, out[rows], piece, self._tiles, self._shape)
        return out.flatten(1)


def tile_starts(sequences: Tensor, num_sequences: int, width: int) -> Tensor:
    """The first row of each tile of at most `width` rows of one sequence, followed by the number of rows."""
    num_rows = len(sequences)
    firsts = torch.full(
        (most_tiles(num_rows, num_sequences, width) + 1,),
        num_rows,
        dtype=torch.int32,
        device=sequences.device,
    )
    with launching_on(sequences):
        attend.find_tiles[(1,)](sequences, firsts, num_rows, width, block=_power_above(num_rows))
    return firsts


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    piece: _Piece,
    tiles: AttentionTiles,
    shape: AttentionShape,
) -> None:
    visible, num_rows = piece.visible, len(queries)
    is_split = tiles.num_splits > 1
    masses = torch.empty((tiles.num_splits, num_rows, shape.num_heads) if is_split else 1, device=out.device)
    parts = torch.empty((*masses.shape, shape.head_dim), device=out.device) if is_split else out
    attend.attend[(len(piece.firsts) - 1, shape.num_kv_heads, tiles.num_splits)](
        queries,
        keys,
        values,
        parts,
        masses,
        piece.firsts,
        visible.sequences,
        visible.seen,
        visible.paths,
        visible.tables,
        visible.tree_starts,
        _LOG2_E / shape.head_dim**0.5,
        num_rows,
        shape.num_heads,
        tiles.num_splits,
        tiles.split_keys,
        queries.stride(0),
        queries.stride(1),
        keys.stride(0),
        visible.tables.stride(0),
        group=shape.group,
        head_dim=shape.head_dim,
        page=visible.page,
        folded=tiles.folded,
        block=tiles.block,
        num_nodes=visible.num_nodes,
        is_split=is_split,
        num_warps=tiles.num_warps,
        num_stages=_STAGES,
    )
    if is_split:
        attend.merge[(num_rows * shape.num_heads,)](
            parts, masses, out, tiles.num_splits, head_dim=shape.head_dim, num_warps=1
        )


@lru_cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _NO_GPU_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _power_above(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
