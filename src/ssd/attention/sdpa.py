"""Attention with torch's scaled_dot_product_attention, on any device; the reference for other backends.

Each span is cut into query tiles; a tile sees its sequence's keys up to its own last row. The query heads
that share a key head are folded into the rows of one call, which on CPUs is about twice as fast as
`enable_gqa` (each key is read once for the whole group).

On CPUs the keys that every row of a tile sees, its prefix, are attended without a mask, and the few keys
after it in a second call, whose mask is small. The two results are merged by their log-sum-exp, which only
torch's CPU kernel returns; on other devices one mask covers all keys. For rows of a tree the second call
reads the nodes' keys from the tree slots.

In deterministic mode the kernel multiplies fixed shapes only. Folded rows are grouped by 16 as separate
entries of the batch dimension, and keys are padded to multiples of 512, the splits of torch's CPU kernel;
padding is masked. A row's prefix ends with the last split before the row's own, so it depends on the row's
position only. A row's bits are then independent of the other rows and keys. A tree is computed as several
texts: each run of consecutive nodes gathers the keys of its path by position, after those of the prefix, so a
node has the same bits as in a plain text. Results are not merged at the end of a tree's prefix, since that
end varies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.attention.batch import Batch, sees_nodes
from ssd.attention.inputs import RowSpan
from ssd.attention.rotation import Rotation
from ssd.kvcache.pool import KVPool

QUERY_TILE = 64
"""Rows of one call: few, so that the mask stays small and few keys are masked."""
LEAST_PREFIX = 256
"""Shortest prefix that is worth a separate call."""
DETERMINISTIC_KEY_TILE = 512
DETERMINISTIC_FOLDED_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """Query rows [first, last) that see the first `num_keys` keys of their sequence."""

    first: int
    last: int
    num_prefix: int
    """Leading keys that all rows see, attended without the mask; 0: the mask covers all keys."""
    num_keys: int
    folded_rows: int
    """Rows × heads of a group in one entry of the batch dimension."""
    mask: Tensor | None
    """Added to the scores, [entries, 1, folded_rows, num_keys - num_prefix]; None: one row that sees all."""


@dataclass(frozen=True, slots=True)
class _Consecutive:
    """Keys and values of a sequence in consecutive slots: a view for each layer, made once per step."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer], self.values[layer]


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Keys and values of a sequence in scattered slots: gathered when they are read."""

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
    nodes: _Consecutive | None = None
    """The tree's keys and values after the prefix; None: they are part of `memory`."""


class SdpaBackend:
    def __init__(self, pool: KVPool, num_heads: int, *, deterministic: bool = False) -> None:
        self._pool = pool
        self._group = num_heads // pool.shape.num_kv_heads
        self._deterministic = deterministic
        if deterministic and pool.shape.spare_slots < DETERMINISTIC_KEY_TILE:
            raise ValueError(
                f"the pool needs {DETERMINISTIC_KEY_TILE} spare slots for deterministic attention"
            )

    def plan(self, batch: Batch) -> "SdpaPlan":
        plans = tuple(plan for span in batch.spans for plan in self._plans(batch, span))
        slots = batch.slots.to(self._pool.keys.device)
        return SdpaPlan(self._pool, slots, plans)

    def _plans(self, batch: Batch, span: RowSpan) -> "list[_SequencePlan]":
        if not span.num_nodes:
            return [self._text(batch, span)]
        return self._runs(batch, span) if self._deterministic else [self._tree(batch, span)]

    def _text(self, batch: Batch, span: RowSpan) -> _SequencePlan:
        tiles = self._tiles(span)
        num_own = span.seen - 1 + span.last - span.first
        return _SequencePlan(tiles, self._memory(batch, span, num_own, tiles[-1].num_keys))

    def _runs(self, batch: Batch, span: RowSpan) -> list[_SequencePlan]:
        """A tree as texts: one for each run of rows in which every row is a child of the one before.

        Requires that tree slots ascend along a path; they do when a tree is computed in one step.
        """
        seen = sees_nodes(batch.paths[span.first : span.last], span.num_nodes).tolist()
        paths = [[node for node, is_seen in enumerate(row) if is_seen] for row in seen]
        firsts = [i for i, path in enumerate(paths) if i == 0 or path[:-1] != paths[i - 1]]
        prefix, tree_start = self._slots(batch, span, span.seen), int(batch.tree_starts[span.sequence])
        plans = []
        for first, last in zip(firsts, [*firsts[1:], len(paths)], strict=True):
            num_before = span.seen + len(paths[first]) - 1
            run = RowSpan(span.sequence, span.first + first, span.first + last, num_before + 1)
            tiles = self._tiles(run)
            nodes = torch.tensor(paths[last - 1], device=prefix.device) + tree_start
            plans.append(_SequencePlan(tiles, self._padded(torch.cat((prefix, nodes)), tiles[-1].num_keys)))
        return plans

    def _tree(self, batch: Batch, span: RowSpan) -> _SequencePlan:
        """Rows that see the whole prefix, and the nodes on their paths."""
        is_apart = self._pool.keys.device.type == "cpu" and span.seen >= LEAST_PREFIX
        hidden = ~sees_nodes(batch.paths[span.first : span.last], span.num_nodes)
        num_prefix = span.seen if is_apart else 0
        if not is_apart:
            hidden = F.pad(hidden, (span.seen, 0))
        firsts, num_keys = range(span.first, span.last, QUERY_TILE), span.seen + span.num_nodes
        tiles = tuple(
            _Tile(
                first,
                first + len(piece),
                num_prefix,
                num_keys,
                len(piece) * self._group,
                self._mask(piece, len(piece) * self._group),
            )
            for first, piece in zip(firsts, torch.split(hidden, QUERY_TILE), strict=True)
        )
        tree_start = int(batch.tree_starts[span.sequence])
        if is_apart:
            memory = self._memory(batch, span, span.seen, span.seen)
            return _SequencePlan(tiles, memory, self._consecutive(tree_start, span.num_nodes))
        prefix = self._slots(batch, span, span.seen)
        nodes = torch.arange(tree_start, tree_start + span.num_nodes, device=prefix.device)
        return _SequencePlan(tiles, _Scattered(self._pool, torch.cat((prefix, nodes))))

    def _tiles(self, span: RowSpan) -> tuple[_Tile, ...]:
        firsts, count = self._first_rows(span), span.last - span.first
        return tuple(self._tile(span, *each) for each in zip(firsts, [*firsts[1:], count], strict=True))

    def _first_rows(self, span: RowSpan) -> list[int]:
        """First rows of the tiles. All rows of a tile have the same prefix, so a deterministic tile ends at a
        split."""
        count = span.last - span.first
        firsts = set(range(0, count, QUERY_TILE))
        if self._deterministic:
            firsts.update(range((1 - span.seen) % DETERMINISTIC_KEY_TILE, count, DETERMINISTIC_KEY_TILE))
        return sorted(firsts)

    def _memory(self, batch: Batch, span: RowSpan, num_own: int, num_keys: int) -> _Consecutive | _Scattered:
        """The first `num_keys` keys of a sequence; those after the first `num_own` are masked padding."""
        size = self._pool.shape.block_size
        used = batch.tables[span.sequence, : -(-num_own // size)].tolist()
        if used == list(range(used[0], used[0] + len(used))):
            return self._consecutive(used[0] * size, num_keys)
        return self._padded(self._slots(batch, span, min(num_keys, len(used) * size)), num_keys)

    def _padded(self, slots: Tensor, num_keys: int) -> _Scattered:
        pool = self._pool
        return _Scattered(pool, F.pad(slots, (0, num_keys - len(slots)), value=pool.scratch_slot))

    def _consecutive(self, first: int, count: int) -> _Consecutive:
        pool = self._pool
        return _Consecutive(
            *(tensor.narrow(2, first, count).unsqueeze(1).unbind(0) for tensor in (pool.keys, pool.values))
        )

    def _slots(self, batch: Batch, span: RowSpan, count: int) -> Tensor:
        size = self._pool.shape.block_size
        used = batch.tables[span.sequence, : -(-count // size)].to(self._pool.keys.device)
        return (used.unsqueeze(1) * size + torch.arange(size, device=used.device)).flatten()[:count]

    def _tile(self, span: RowSpan, first: int, last: int) -> _Tile:
        num_keys, folded_rows = span.seen - 1 + last, (last - first) * self._group
        if self._deterministic:
            num_keys = _round_up(num_keys, DETERMINISTIC_KEY_TILE)
            folded_rows = DETERMINISTIC_FOLDED_ROWS
        elif last - first == 1:
            return _Tile(span.first + first, span.first + last, 0, num_keys, folded_rows, None)
        num_prefix = self._num_prefix(span.seen - 1 + first)
        own = torch.arange(span.seen - 1 + first, span.seen - 1 + last).unsqueeze(1)
        hidden = torch.arange(num_prefix, num_keys) > own
        mask = self._mask(hidden, folded_rows)
        return _Tile(span.first + first, span.first + last, num_prefix, num_keys, folded_rows, mask)

    def _mask(self, hidden: Tensor, folded_rows: int) -> Tensor:
        """The mask to add to the scores of folded rows: [entries, 1, folded_rows, keys]."""
        device = self._pool.keys.device
        hidden = hidden.to(device).repeat_interleave(self._group, dim=0)
        num_rows, num_keys = _round_up(len(hidden), folded_rows), hidden.shape[1]
        mask = torch.zeros(num_rows, num_keys, dtype=self._pool.keys.dtype, device=device)
        mask[: len(hidden)].masked_fill_(hidden, float("-inf"))
        return mask.view(-1, 1, folded_rows, num_keys)

    def _num_prefix(self, num_common: int) -> int:
        """How many of the `num_common` keys that all rows of a tile see are attended without a mask."""
        if self._pool.keys.device.type != "cpu":
            return 0
        if self._deterministic:
            return num_common // DETERMINISTIC_KEY_TILE * DETERMINISTIC_KEY_TILE
        return num_common if num_common >= LEAST_PREFIX else 0


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    _pool: KVPool
    _slot_of_row: Tensor
    _sequences: tuple[_SequencePlan, ...]

    def attend(self, layer: int, heads: Tensor, values: Tensor, rotation: Rotation) -> Tensor:
        num_kv_heads, rotated = values.shape[1], rotation.apply(heads)
        queries, keys = rotated[:, :-num_kv_heads], rotated[:, -num_kv_heads:]
        # A masked NaN is still NaN: a rejected token's keys would reach rows that do not see them.
        keys, values = (torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in (keys, values))
        self._pool.keys[layer].index_copy_(1, self._slot_of_row, keys.transpose(0, 1))
        self._pool.values[layer].index_copy_(1, self._slot_of_row, values.transpose(0, 1))
        num_rows, _, head_dim = queries.shape
        grouped = queries.view(num_rows, num_kv_heads, -1, head_dim)
        out = torch.zeros(grouped.shape, dtype=queries.dtype, device=queries.device)
        # One operation for all rows, since most tiles are a single row and calls take most of the time.
        query_of_row, out_of_row = grouped.unsqueeze(1).unbind(0), out.unsqueeze(1).unbind(0)
        halves: list[_Halves] = []
        for sequence in self._sequences:
            known_keys, known_values = sequence.memory.read(layer)
            for tile in sequence.tiles:
                if tile.mask is None:
                    attended = F.scaled_dot_product_attention(
                        query_of_row[tile.first], known_keys, known_values
                    )
                    out_of_row[tile.first].copy_(attended)
                    continue
                rows = slice(tile.first, tile.last)
                folded = _fold(grouped[rows], tile.mask.shape[0], tile.folded_rows)
                if tile.num_prefix:
                    nodes = None if sequence.nodes is None else sequence.nodes.read(layer)
                    halves.append(_attend_halves(folded, (known_keys, known_values), nodes, tile, out[rows]))
                else:
                    seen_keys, seen_values = (_expanded(each, tile) for each in (known_keys, known_values))
                    attended = F.scaled_dot_product_attention(
                        folded, seen_keys, seen_values, attn_mask=tile.mask
                    )
                    _unfold(attended, out[rows])
        if halves:
            _merge(halves)
        return out.view(num_rows, -1)


@dataclass(frozen=True, slots=True)
class _Halves:
    """Attention of folded rows over their prefix and over the keys after it, each with its log-sum-exp."""

    prefix: Tensor
    prefix_mass: Tensor
    rest: Tensor
    rest_mass: Tensor
    out: Tensor
    """The destination of the merged result, [rows, kv_heads, group, d]."""


def _fold(grouped: Tensor, num_entries: int, folded_rows: int) -> Tensor:
    """[rows, kv_heads, group, d] as [entries, kv_heads, folded_rows, d], padded with zeros."""
    rows, kv_heads, group, head_dim = grouped.shape
    folded = grouped.transpose(0, 1).flatten(1, 2)
    padding = num_entries * folded_rows - rows * group
    if padding:
        folded = F.pad(folded, (0, 0, 0, padding))
    return folded.view(kv_heads, num_entries, folded_rows, head_dim).transpose(0, 1)


def _unfold(attended: Tensor, out: Tensor) -> None:
    """Reverses `_fold`, without the padding."""
    rows, kv_heads, group, head_dim = out.shape
    unfolded = attended.transpose(0, 1).flatten(1, 2)[:, : rows * group]
    out.copy_(unfolded.reshape(kv_heads, rows, group, head_dim).transpose(0, 1))


def _expanded(memory: Tensor, tile: _Tile) -> Tensor:
    """The keys or values [1, kv_heads, keys, d] that a tile sees, repeated for each of its entries."""
    num_entries = 1 if tile.mask is None else tile.mask.shape[0]
    return memory[:, :, : tile.num_keys].expand(num_entries, -1, -1, -1)


def _attend_halves(
    folded: Tensor,
    known: tuple[Tensor, Tensor],
    nodes: tuple[Tensor, Tensor] | None,
    tile: _Tile,
    out: Tensor,
) -> _Halves:
    # The public function calls this on CPUs, but does not return the log-sum-exp.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    keys, values = (_expanded(each, tile) for each in known)
    prefix, prefix_mass = attend(folded, keys[:, :, : tile.num_prefix], values[:, :, : tile.num_prefix])
    if nodes is None:
        nodes = keys[:, :, tile.num_prefix :], values[:, :, tile.num_prefix :]
    rest, rest_mass = attend(folded, *nodes, attn_mask=tile.mask)
    return _Halves(prefix, prefix_mass, rest, rest_mass, out)


def _merge(halves: Sequence[_Halves]) -> None:
    """Merges the attention over both halves of each row. All tiles at once, to make few calls."""
    prefixes, rests = (
        torch.cat([each.flatten(0, 2) for each in parts]).float()
        for parts in ([each.prefix for each in halves], [each.rest for each in halves])
    )
    gaps = torch.cat([(each.rest_mass - each.prefix_mass).flatten() for each in halves]).unsqueeze(1)
    # Only elementwise products and sums, whose rounding does not depend on the row's index.
    share = gaps.double().sigmoid().float()
    merged = rests.mul_(share).add_(prefixes.mul_(1.0 - share))
    sizes = [each.prefix_mass.numel() for each in halves]
    for each, attended in zip(halves, torch.split(merged, sizes), strict=True):
        _unfold(attended.view(each.prefix.shape), each.out)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
