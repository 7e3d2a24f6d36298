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
    """Query rows [first, last) seeing the first `num_keys` keys of their sequence.

    Without a mask it is a single row that sees every key up to its own.
    """

    first: int
    last: int
    num_keys: int
    folded_rows: int
    """Rows of one entry of the batch dimension, heads of a group counted each."""
    mask: Tensor | None
    """Added to the scores, [entries, 1, folded_rows, num_keys]; None where nothing is hidden."""


@dataclass(frozen=True, slots=True)
class _Consecutive:
    """Keys and values of a sequence in consecutive slots: a view for each layer, made once a step."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Keys and values of a sequence whose slots lie apart: gathered when they are read."""

    pool: KVPool
    slots: Tensor

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = (
            pool[layer].index_select(1, self.slots) for pool in (self.pool.keys, self.pool.values)
        )
        return keys.unsqueeze(0), values.unsqueeze(0)


@dataclass(frozen=True, slots=True)
class _SequencePlan:
    tiles: tuple[_Tile, ...]
    memory: _Consecutive | _Scattered


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
        return SdpaPlan(self._pool, slot_of_row, tuple(map(self._sequence, spans)), self._deterministic)

    def _slots(self, blocks: Sequence[int], start: int, count: int) -> list[int]:
        size = self._pool.shape.block_size
        return [blocks[p // size] * size + p % size for p in range(start, start + count)]

    def _sequence(self, span: Span) -> _SequencePlan:
        firsts = range(0, span.count, QUERY_TILE)
        tiles = tuple(self._tile(span, first, min(first + QUERY_TILE, span.count)) for first in firsts)
        return _SequencePlan(tiles, self._memory(span, tiles[-1].num_keys))

    def _memory(self, span: Span, num_keys: int) -> _Consecutive | _Scattered:
        pool, size = self._pool, self._pool.shape.block_size
        used = list(span.blocks[: -(-(span.start + span.count) // size)])
        if used == list(range(used[0], used[0] + len(used))):
            keys, values = (
                tensor.narrow(2, used[0] * size, num_keys).unsqueeze(1).unbind(0)
                for tensor in (pool.keys, pool.values)
            )
            return _Consecutive(keys, values)
        firsts = torch.tensor(used, device=pool.keys.device).unsqueeze(1) * size
        slots = (firsts + torch.arange(size, device=pool.keys.device)).flatten()[:num_keys]
        return _Scattered(pool, F.pad(slots, (0, num_keys - len(slots)), value=pool.scratch_slot))

    def _tile(self, span: Span, first: int, last: int) -> _Tile:
        num_keys, folded_rows = span.start + last, (last - first) * self._group
        if self._deterministic:
            num_keys = _round_up(num_keys, DETERMINISTIC_KEY_TILE)
            folded_rows = DETERMINISTIC_FOLDED_ROWS
        elif last - first == 1 and span.branches is None:
            return _Tile(span.row + first, span.row + last, num_keys, folded_rows, None)
        device = self._pool.keys.device
        hidden = _hidden(span, first, last, num_keys).to(device).repeat_interleave(self._group, dim=0)
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
    _sequences: tuple[_SequencePlan, ...]
    _scrubs: bool
    """Whole splits of keys reach into slots of others, and a masked NaN is still NaN: so none is stored."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self._scrubs:
            keys, values = (
                torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in (keys, values)
            )
        self._pool.keys[layer].index_copy_(1, self._slot_of_row, keys.transpose(0, 1))
        self._pool.values[layer].index_copy_(1, self._slot_of_row, values.transpose(0, 1))
        num_rows, _, head_dim = queries.shape
        grouped = queries.view(num_rows, self._pool.shape.num_kv_heads, -1, head_dim)
        out = torch.zeros(grouped.shape, dtype=queries.dtype, device=queries.device)
        # One operation for all rows: most tiles are a single row, and their number is what costs.
        query_of_row, out_of_row = grouped.unsqueeze(1).unbind(0), out.unsqueeze(1).unbind(0)
        for sequence in self._sequences:
            known_keys, known_values = sequence.memory.read(layer)
            for tile in sequence.tiles:
                if tile.mask is None:
                    attended = F.scaled_dot_product_attention(
                        query_of_row[tile.first], known_keys, known_values
                    )
                    out_of_row[tile.first].copy_(attended)
                else:
                    rows = slice(tile.first, tile.last)
                    _attend_folded(grouped[rows], known_keys, known_values, tile, out[rows])
        return out.view(num_rows, -1)


def _hidden(span: Span, first: int, last: int, num_keys: int) -> Tensor:
    """Which keys the rows [first, last) of a span do not see."""
    own = torch.arange(span.start + first, span.start + last).unsqueeze(1)
    if span.branches is None:
        return torch.arange(num_keys) > own
    hidden = torch.ones(last - first, num_keys, dtype=torch.bool)
    hidden[:, : span.branches.num_trunk] = False
    hidden.scatter_(1, own, value=False)
    for row, ancestors in enumerate(span.branches.ancestors[first:last]):
        hidden[row, list(ancestors)] = False
    return hidden


def _attend_folded(grouped: Tensor, keys: Tensor, values: Tensor, tile: _Tile, out: Tensor) -> None:
    """[rows, kv_heads, group, d] against [1, kv_heads, keys, d], the heads of a group folded into rows."""
    rows, kv_heads, group, head_dim = grouped.shape
    folded = grouped.transpose(0, 1).flatten(1, 2)
    num_entries = tile.mask.shape[0] if tile.mask is not None else 1
    padding = num_entries * tile.folded_rows - rows * group
    if padding:
        folded = F.pad(folded, (0, 0, 0, padding))
    attended = F.scaled_dot_product_attention(
        folded.view(kv_heads, num_entries, tile.folded_rows, head_dim).transpose(0, 1),
        keys[:, :, : tile.num_keys].expand(num_entries, -1, -1, -1),
        values[:, :, : tile.num_keys].expand(num_entries, -1, -1, -1),
        attn_mask=tile.mask,
    )
    unfolded = attended.transpose(0, 1).flatten(1, 2)[:, : rows * group]
    out.copy_(unfolded.reshape(kv_heads, rows, group, head_dim).transpose(0, 1))


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
