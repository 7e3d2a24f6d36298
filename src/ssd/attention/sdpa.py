"""Attention by torch's scaled_dot_product_attention: any device, and the oracle of others.

Each span is cut into query tiles; a tile sees its sequence's keys up to its own last
row. The heads that share a key head are folded into the rows of one call, which on CPUs
is about twice as fast as `enable_gqa` (each key is read once for the whole group).

On CPUs the keys that every row of a tile sees, its trunk, are attended without a mask, and the
few behind them apart: a mask is as wide as these, not as the context. The two are merged by the
logarithms of their sums, which only torch's CPU kernel gives; elsewhere one mask covers all keys.
Rows of a tree have their nodes' keys behind their trunk, from the tree slots.

Deterministic: the kernel multiplies fixed shapes only. Folded rows go in groups of 16 as
separate entries of the batch dimension, and keys in whole splits of 512, in which torch's CPU
kernel walks them; what is added is masked. The trunk of a row ends with the last split before
its own, so with its position alone. A row's result then has the same bits whatever rows and
keys are computed beside it. A tree is then so many texts: each run of nodes that follow one another
has the keys of its path gathered by position, behind the trunk's, so a node has the bits that it has
in a text of its own. Nothing is merged where the trunk ends, which would be another place each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.attention.batch import Batch, sees_nodes
from ssd.attention.inputs import RowSpan
from ssd.kvcache.pool import KVPool

QUERY_TILE = 64
"""Rows of one call: small enough that the mask stays small and few keys are masked."""
LEAST_TRUNK = 256
"""Keys that are worth a call of their own; fewer are cheaper under the mask."""
DETERMINISTIC_KEY_TILE = 512
DETERMINISTIC_FOLDED_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """Query rows [first, last) seeing the first `num_keys` keys of their sequence.

    Without a mask it is a single row that sees every key up to its own.
    """

    first: int
    last: int
    num_trunk: int
    """Leading keys that all its rows see, attended without the mask; 0: it covers every key."""
    num_keys: int
    folded_rows: int
    """Rows of one entry of the batch dimension, heads of a group counted each."""
    mask: Tensor | None
    """Added to the scores, [entries, 1, folded_rows, num_keys - num_trunk]; None where nothing is hidden."""


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
    nodes: _Consecutive | None = None
    """Where the keys behind the trunk are a tree's, in a place of their own."""


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
        """A tree as texts, one for each run of rows of which each follows the one before.

        Requires that tree slots ascend along a path; they do when a tree is computed in one step.
        """
        seen = sees_nodes(batch.paths[span.first : span.last], span.num_nodes).tolist()
        paths = [[node for node, is_seen in enumerate(row) if is_seen] for row in seen]
        firsts = [i for i, path in enumerate(paths) if i == 0 or path[:-1] != paths[i - 1]]
        trunk, tree_start = self._slots(batch, span, span.seen), int(batch.tree_starts[span.sequence])
        plans = []
        for first, last in zip(firsts, [*firsts[1:], len(paths)], strict=True):
            num_before = span.seen + len(paths[first]) - 1
            run = RowSpan(span.sequence, span.first + first, span.first + last, num_before + 1)
            tiles = self._tiles(run)
            nodes = torch.tensor(paths[last - 1], device=trunk.device) + tree_start
            plans.append(_SequencePlan(tiles, self._padded(torch.cat((trunk, nodes)), tiles[-1].num_keys)))
        return plans

    def _tree(self, batch: Batch, span: RowSpan) -> _SequencePlan:
        """Rows that see their whole trunk, and nodes of the tree as their paths say."""
        is_apart = self._pool.keys.device.type == "cpu" and span.seen >= LEAST_TRUNK
        hidden = ~sees_nodes(batch.paths[span.first : span.last], span.num_nodes)
        num_trunk = span.seen if is_apart else 0
        if not is_apart:
            hidden = F.pad(hidden, (span.seen, 0))
        firsts, num_keys = range(span.first, span.last, QUERY_TILE), span.seen + span.num_nodes
        tiles = tuple(
            _Tile(
                first,
                first + len(piece),
                num_trunk,
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
        trunk = self._slots(batch, span, span.seen)
        nodes = torch.arange(tree_start, tree_start + span.num_nodes, device=trunk.device)
        return _SequencePlan(tiles, _Scattered(self._pool, torch.cat((trunk, nodes))))

    def _tiles(self, span: RowSpan) -> tuple[_Tile, ...]:
        firsts, count = self._first_rows(span), span.last - span.first
        return tuple(self._tile(span, *each) for each in zip(firsts, [*firsts[1:], count], strict=True))

    def _first_rows(self, span: RowSpan) -> list[int]:
        """Of the tiles. Rows of one tile have one trunk, so a deterministic tile ends where a split does."""
        count = span.last - span.first
        firsts = set(range(0, count, QUERY_TILE))
        if self._deterministic:
            firsts.update(range((1 - span.seen) % DETERMINISTIC_KEY_TILE, count, DETERMINISTIC_KEY_TILE))
        return sorted(firsts)

    def _memory(self, batch: Batch, span: RowSpan, num_own: int, num_keys: int) -> _Consecutive | _Scattered:
        """The first keys of a sequence; those beyond its own are there to fill a split, and masked."""
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
        num_trunk = self._num_trunk(span.seen - 1 + first)
        own = torch.arange(span.seen - 1 + first, span.seen - 1 + last).unsqueeze(1)
        hidden = torch.arange(num_trunk, num_keys) > own
        mask = self._mask(hidden, folded_rows)
        return _Tile(span.first + first, span.first + last, num_trunk, num_keys, folded_rows, mask)

    def _mask(self, hidden: Tensor, folded_rows: int) -> Tensor:
        """Added to the scores of folded rows: [entries, 1, folded_rows, keys]."""
        device = self._pool.keys.device
        hidden = hidden.to(device).repeat_interleave(self._group, dim=0)
        num_rows, num_keys = _round_up(len(hidden), folded_rows), hidden.shape[1]
        mask = torch.zeros(num_rows, num_keys, dtype=self._pool.keys.dtype, device=device)
        mask[: len(hidden)].masked_fill_(hidden, float("-inf"))
        return mask.view(-1, 1, folded_rows, num_keys)

    def _num_trunk(self, num_common: int) -> int:
        """Of the leading keys that every row of a tile sees, those that need no mask."""
        if self._pool.keys.device.type != "cpu":
            return 0
        if self._deterministic:
            return num_common // DETERMINISTIC_KEY_TILE * DETERMINISTIC_KEY_TILE
        return num_common if num_common >= LEAST_TRUNK else 0


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    _pool: KVPool
    _slot_of_row: Tensor
    _sequences: tuple[_SequencePlan, ...]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        # A masked NaN is still NaN: what a refused token left would reach rows that do not see it.
        keys, values = (torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in (keys, values))
        self._pool.keys[layer].index_copy_(1, self._slot_of_row, keys.transpose(0, 1))
        self._pool.values[layer].index_copy_(1, self._slot_of_row, values.transpose(0, 1))
        num_rows, _, head_dim = queries.shape
        grouped = queries.view(num_rows, self._pool.shape.num_kv_heads, -1, head_dim)
        out = torch.zeros(grouped.shape, dtype=queries.dtype, device=queries.device)
        # One operation for all rows: most tiles are a single row, and their number is what costs.
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
                if tile.num_trunk:
                    behind = None if sequence.nodes is None else sequence.nodes.read(layer)
                    halves.append(_attend_halves(folded, (known_keys, known_values), behind, tile, out[rows]))
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
    """What folded rows got of their trunk and of the keys behind it, each with the logarithm of its sum."""

    trunk: Tensor
    trunk_mass: Tensor
    rest: Tensor
    rest_mass: Tensor
    out: Tensor
    """Where the whole is to go, [rows, kv_heads, group, d]."""


def _fold(grouped: Tensor, num_entries: int, folded_rows: int) -> Tensor:
    """[rows, kv_heads, group, d] as [entries, kv_heads, folded_rows, d], padded with zeros."""
    rows, kv_heads, group, head_dim = grouped.shape
    folded = grouped.transpose(0, 1).flatten(1, 2)
    padding = num_entries * folded_rows - rows * group
    if padding:
        folded = F.pad(folded, (0, 0, 0, padding))
    return folded.view(kv_heads, num_entries, folded_rows, head_dim).transpose(0, 1)


def _unfold(attended: Tensor, out: Tensor) -> None:
    """The way back, without the padding."""
    rows, kv_heads, group, head_dim = out.shape
    unfolded = attended.transpose(0, 1).flatten(1, 2)[:, : rows * group]
    out.copy_(unfolded.reshape(kv_heads, rows, group, head_dim).transpose(0, 1))


def _expanded(memory: Tensor, tile: _Tile) -> Tensor:
    """Those of the keys or values [1, kv_heads, keys, d] that a tile sees, for each of its entries."""
    num_entries = 1 if tile.mask is None else tile.mask.shape[0]
    return memory[:, :, : tile.num_keys].expand(num_entries, -1, -1, -1)


def _attend_halves(
    folded: Tensor,
    known: tuple[Tensor, Tensor],
    nodes: tuple[Tensor, Tensor] | None,
    tile: _Tile,
    out: Tensor,
) -> _Halves:
    # What the public function calls on CPUs; it does not pass on the logarithms of the sums.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    keys, values = (_expanded(each, tile) for each in known)
    trunk, trunk_mass = attend(folded, keys[:, :, : tile.num_trunk], values[:, :, : tile.num_trunk])
    if nodes is None:
        nodes = keys[:, :, tile.num_trunk :], values[:, :, tile.num_trunk :]
    rest, rest_mass = attend(folded, *nodes, attn_mask=tile.mask)
    return _Halves(trunk, trunk_mass, rest, rest_mass, out)


def _merge(halves: Sequence[_Halves]) -> None:
    """Softmax over both halves of each row, from those over each. All tiles at once: calls are what costs."""
    trunks, rests = (
        torch.cat([each.flatten(0, 2) for each in parts]).float()
        for parts in ([each.trunk for each in halves], [each.rest for each in halves])
    )
    gaps = torch.cat([(each.rest_mass - each.trunk_mass).flatten() for each in halves]).unsqueeze(1)
    # Nothing here may depend on where a row stands: products and sums are exact roundings of their own.
    share = gaps.double().sigmoid().float()
    merged = rests.mul_(share).add_(trunks.mul_(1.0 - share))
    sizes = [each.trunk_mass.numel() for each in halves]
    for each, attended in zip(halves, torch.split(merged, sizes), strict=True):
        _unfold(attended.view(each.trunk.shape), each.out)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step
