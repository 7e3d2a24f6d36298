"""Attention by torch's scaled_dot_product_attention: any device, and the oracle of others.

Each span is cut into query tiles; a tile sees its sequence's keys up to its own last
row. The heads that share a key head are folded into the rows of one call, which on CPUs
is about twice as fast as `enable_gqa` (each key is read once for the whole group).

Deterministic: the kernel multiplies fixed shapes only. Folded rows go in groups of 16 as
separate entries of the batch dimension, and the number of keys is rounded up to whole
splits of 512, in which torch's CPU kernel walks them; what is added is masked. A row's
result then has the same bits whatever rows and keys are computed beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.attention.backend import Span
from ssd.kvcache.pool import KVPool

QUERY_TILE = 64
"""Rows of one call: small enough that the mask stays small and few keys are masked."""
DETERMINISTIC_KEY_TILE = 512
DETERMINISTIC_FOLDED_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """Query rows [first, last) seeing the first `num_keys` keys of their sequence."""

    first: int
    last: int
    num_keys: int
    folded_rows: int
    """Rows of one entry of the batch dimension, heads of a group counted each."""
    mask: Tensor | None
    """Added to the scores, [entries, 1, folded_rows, num_keys]; None where nothing is hidden."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """One sequence's keys: a view from a first slot, or the slots to gather."""

    tiles: tuple[_Tile, ...]
    num_keys: int
    first_slot: int
    slots: Tensor | None

    def read(self, pool: Tensor) -> Tensor:
        """[kv_heads, num_keys, head_dim] of one layer."""
        if self.slots is None:
            return pool.narrow(1, self.first_slot, self.num_keys)
        return pool.index_select(1, self.slots)


class SdpaBackend:
    def __init__(self, pool: KVPool, num_heads: int, *, deterministic: bool = False) -> None:
        self._pool = pool
        self._group = num_heads // pool.shape.num_kv_heads
        self._deterministic = deterministic
        if deterministic and pool.shape.spare_slots < DETERMINISTIC_KEY_TILE:
            raise ValueError(
                f"the pool needs {DETERMINISTIC_KEY_TILE} spare slots for deterministic attention"
            )

    def plan(self, spans: Sequence[Span], num_rows: int) -> "SdpaPlan":
        slots = [self._pool.scratch_slot] * num_rows
        for span in spans:
            slots[span.row : span.row + span.count] = self._slots(span.blocks, span.start, span.count)
        slot_of_row = torch.tensor(slots, device=self._pool.keys.device)
        return SdpaPlan(self._pool, slot_of_row, tuple(self._reader(span) for span in spans))

    def _slots(self, blocks: Sequence[int], start: int, count: int) -> list[int]:
        size = self._pool.shape.block_size
        return [blocks[p // size] * size + p % size for p in range(start, start + count)]

    def _reader(self, span: Span) -> _Reader:
        firsts = range(0, span.count, QUERY_TILE)
        tiles = tuple(self._tile(span, first, min(first + QUERY_TILE, span.count)) for first in firsts)
        num_keys = tiles[-1].num_keys
        size = self._pool.shape.block_size
        used = span.blocks[: -(-(span.start + span.count) // size)]
        if all(following - block == 1 for block, following in pairwise(used)):
            return _Reader(tiles, num_keys, used[0] * size, None)
        num_real = min(num_keys, len(used) * size)
        slots = self._slots(used, 0, num_real) + [self._pool.scratch_slot] * (num_keys - num_real)
        return _Reader(tiles, num_keys, 0, torch.tensor(slots, device=self._pool.keys.device))

    def _tile(self, span: Span, first: int, last: int) -> _Tile:
        num_keys, folded_rows = span.start + last, (last - first) * self._group
        if self._deterministic:
            num_keys = _round_up(num_keys, DETERMINISTIC_KEY_TILE)
            folded_rows = DETERMINISTIC_FOLDED_ROWS
        elif last - first == 1:
            return _Tile(span.row + first, span.row + last, num_keys, folded_rows, None)
        device = self._pool.keys.device
        positions = torch.arange(span.start + first, span.start + last, device=device)
        hidden = torch.arange(num_keys, device=device) > positions.repeat_interleave(self._group).unsqueeze(1)
        mask = torch.zeros(
            _round_up(hidden.shape[0], folded_rows), num_keys, dtype=self._pool.keys.dtype, device=device
        )
        mask[: hidden.shape[0]].masked_fill_(hidden, float("-inf"))
        mask = mask.view(-1, 1, folded_rows, num_keys)
        return _Tile(span.row + first, span.row + last, num_keys, folded_rows, mask)


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    _pool: KVPool
    _slot_of_row: Tensor
    _readers: tuple[_Reader, ...]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        key_pool, value_pool = self._pool.keys[layer], self._pool.values[layer]
        key_pool.index_copy_(1, self._slot_of_row, keys.transpose(0, 1))
        value_pool.index_copy_(1, self._slot_of_row, values.transpose(0, 1))
        out = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        for reader in self._readers:
            known_keys, known_values = reader.read(key_pool), reader.read(value_pool)
            for tile in reader.tiles:
                _attend_folded(
                    queries[tile.first : tile.last],
                    known_keys[:, : tile.num_keys],
                    known_values[:, : tile.num_keys],
                    tile,
                    out[tile.first : tile.last],
                )
        return out.flatten(1)


def _attend_folded(queries: Tensor, keys: Tensor, values: Tensor, tile: _Tile, out: Tensor) -> None:
    """[rows, heads, d] against [kv_heads, keys, d], the heads of a group folded into rows."""
    rows, heads, head_dim = queries.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    folded = queries.reshape(rows, kv_heads, group, head_dim).transpose(0, 1).flatten(1, 2)
    num_entries = -(-folded.shape[1] // tile.folded_rows)
    padding = num_entries * tile.folded_rows - folded.shape[1]
    if padding:
        folded = F.pad(folded, (0, 0, 0, padding))
    entries = folded.view(kv_heads, num_entries, tile.folded_rows, head_dim).transpose(0, 1)
    attended = F.scaled_dot_product_attention(
        entries,
        keys.expand(num_entries, -1, -1, -1),
        values.expand(num_entries, -1, -1, -1),
        attn_mask=tile.mask,
    )
    unfolded = attended.transpose(0, 1).flatten(1, 2)[:, : rows * group]
    out.view(rows, kv_heads, group, head_dim).copy_(
        unfolded.reshape(kv_heads, rows, group, head_dim).transpose(0, 1)
    )


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
