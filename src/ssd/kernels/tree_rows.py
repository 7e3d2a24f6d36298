"""Ranks each tree's candidate rows for a step, and writes the rows that were chosen.

Candidates are unread tokens of the text, and the tree's best nodes. `tree_turns.py` chooses among the
candidates of all trees. `select_rows` and `free_slots` of `draft/tree/select.py` are the references. Knows
tables. Does not know tenants.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.tree_turns import RowDemand
from ssd.kernels.trees import Sizes, StepRows, Trees, bit_of, text_slot, up_to_power


class KeyLayout(NamedTuple):
    """The parts of a sort key."""

    nothing: int
    """Larger than all other keys."""
    read_first: int
    oldest: int
    node_bits: int


class RankedNodes(NamedTuple):
    """Each tree's candidates and free slots."""

    best: Tensor  # nodes that may be processed, best first
    keys: Tensor  # of unread tokens, then of `best`; the lower half is the index in this table
    free: Tensor  # free slots, ascending, followed by the root's family

    @classmethod
    def of(cls, trees: Trees, sizes: Sizes, free: Tensor) -> "RankedNodes":
        sequences, families = trees.is_used.shape
        most = min(sizes.width, families - 1)
        best, keys = (
            torch.zeros(sequences, count, dtype=torch.int64, device=free.device)
            for count in (most, sizes.ring + most)
        )
        return cls(best, keys, free)


@jit()
def rank_tree(
    trees,
    ranked,
    demand,
    sizes,
    slots: tl.constexpr,
    children: tl.constexpr,
    most: tl.constexpr,
    num_free: tl.constexpr,
    nothing: tl.constexpr,
    read_first: tl.constexpr,
    oldest: tl.constexpr,
    node_bits: tl.constexpr,
    wide: tl.constexpr,
    nodes: tl.constexpr,
    places: tl.constexpr,
    spots: tl.constexpr,
    rings: tl.constexpr,
):
    """One program per sequence. The last five are powers of two, at least the actual sizes."""
    here = tl.program_id(0).to(tl.int64)
    first = here * (slots + 1)
    length, num_computed = tl.load(trees.length + here), tl.load(trees.num_computed + here)
    is_live = tl.load(trees.is_live + here) != 0

    slot = tl.arange(0, wide)
    is_slot = slot < slots
    is_free = is_slot & (tl.load(trees.is_used + first + slot, mask=is_slot, other=1) == 0)
    number = tl.cumsum(is_free.to(tl.int32), 0) - 1
    room = tl.sum(is_free.to(tl.int32), 0)
    tl.store(ranked.free + here * num_free + number, slot, mask=is_free & (number < num_free))
    spot = tl.arange(0, spots)
    tl.store(ranked.free + here * num_free + spot, spot * 0 + slots, mask=(spot >= room) & (spot < num_free))

    node = tl.arange(0, nodes)
    family, rank = first + node // children, node % children
    is_node = node < (slots + 1) * children
    may = (tl.load(trees.is_open + first * children + node, mask=is_node, other=0) != 0) & is_live
    may = may & (tl.load(trees.is_used + family, mask=is_node, other=0) != 0) & (length == num_computed)
    position = tl.load(trees.position + family, mask=is_node, other=0)
    may = may & (position < tl.load(trees.last_position + here))
    value = tl.load(trees.child_value + first * children + node, mask=may, other=0.0)
    # The bits of non-negative float32 numbers sort like the numbers.
    distance = tl.abs(value.to(tl.float32)).to(tl.int32, bitcast=True).to(tl.int64)
    age = tl.load(trees.first_id + family, mask=is_node, other=0) - tl.load(trees.root_id + here)
    age = (tl.minimum(age, oldest) + rank) << node_bits
    key = tl.where(may, (distance << 32) | (age + node), nothing)
    place = tl.arange(0, places)
    # Divide the free slots among the remaining steps of the round.
    steps = tl.load(trees.steps_left + here)
    best = tl.where(place < (room + steps - 1) // steps, -tl.topk(-key, places), nothing)
    is_place = place < most
    tl.store(ranked.best + here * most + place, best, mask=is_place)

    span = sizes.ring + most
    behind, column = length - num_computed, tl.arange(0, rings)
    is_column = column < sizes.ring
    is_due = (column < behind) & is_column & is_live
    # Texts with the fewest unread tokens first, and within a text the earlier tokens.
    due = (behind * sizes.ring + column - read_first) << 32
    due = tl.where(is_due, due, nothing) | (here * span + column)
    tl.store(ranked.keys + here * span + column, due, mask=is_column)
    best_place = here * span + sizes.ring + place
    tl.store(ranked.keys + best_place, ((best >> 32) << 32) | best_place, mask=is_place)
    num_due = tl.sum(is_due.to(tl.int64), 0)
    tl.store(demand.due + here, num_due)
    tl.store(demand.wanted + here, num_due + tl.sum((is_place & (best < nothing)).to(tl.int64), 0))
    is_new = is_live & (tl.load(trees.is_new + here) != 0)
    tl.store(demand.beside + here, tl.where(is_new, behind, 0))


@jit()
def lay_row(
    trees,
    rows,
    ranked,
    found,
    sizes,
    slots: tl.constexpr,
    children: tl.constexpr,
    most: tl.constexpr,
    num_free: tl.constexpr,
    nothing: tl.constexpr,
    node_bits: tl.constexpr,
    wide: tl.constexpr,
):
    """One program per row. Indices in `found` ascend, so the rows of a tree are adjacent."""
    row = tl.program_id(0).to(tl.int64)
    place, span = tl.load(found + row), sizes.ring + most
    is_valid = place < nothing
    home = place // span
    sequence, column = tl.where(is_valid, home, 0), tl.where(is_valid, place - home * span, 0)
    is_read, is_node = is_valid & (column < sizes.ring), is_valid & (column >= sizes.ring)
    node = tl.load(ranked.best + sequence * most + tl.maximum(column - sizes.ring, 0))
    node = tl.where(is_node, node & ((1 << node_bits) - 1), 0)
    family, rank = node // children, node % children
    spot = sequence * (slots + 1) + family
    every = tl.arange(0, wide)
    is_row = every < tl.num_programs(0)
    homes = tl.load(found + every, mask=is_row, other=nothing) // span
    start = tl.sum((is_row & (homes < home)).to(tl.int64), 0)
    tl.store(rows.sequence + row, sequence)
    tl.store(rows.home + row, home)
    tl.store(rows.family + row, family)
    tl.store(rows.rank + row, rank)
    tl.store(rows.start + row, start)
    tl.store(rows.is_read + row, is_read)
    tl.store(rows.key + row, tl.load(ranked.keys + tl.where(is_valid, place, 0)))

    length = tl.load(trees.length + sequence)
    read_at = tl.load(trees.num_computed + sequence) + tl.where(is_read, column, 0)
    position = tl.where(is_node, tl.load(trees.position + spot) + 1, read_at)
    tl.store(rows.position + row, position)
    tl.store(rows.context_len + row, tl.where(is_read, position + 1, length))
    tl.store(rows.attaches + row, is_node | (is_read & (position == length - 1)))
    said = tl.load(trees.ring + sequence * sizes.ring + read_at % sizes.ring)
    tl.store(rows.token + row, tl.where(is_node, tl.load(trees.child_token + spot * children + rank), said))

    slot = tl.load(ranked.free + sequence * num_free + tl.minimum(row - start, num_free - 1))
    slot = tl.where(is_node, slot, slots)
    in_tree = sizes.first_tree_slot + sequence * sizes.tree + tl.where(is_node, slot, 0)
    tl.store(rows.slot + row, slot)
    tl.store(rows.target + row, tl.where(is_read, text_slot(trees, sizes, sequence, position), in_tree))
    low = tl.load(trees.ancestors + spot) | bit_of(family, 0, slots)
    high = tl.load(trees.ancestors + sizes.words + spot) | bit_of(family, 1, slots)
    tl.store(rows.ancestors + row, tl.where(is_node, low, 0))
    tl.store(rows.ancestors + sizes.all_rows + row, tl.where(is_node, high, 0))
    node_id = tl.load(trees.first_id + spot) + rank
    tl.store(rows.node_id + row, tl.where(is_node, node_id, tl.load(trees.root_id + sequence)))
    value = tl.load(trees.child_value + spot * children + rank)
    tl.store(rows.value + row, tl.where(is_node, value, 0.0))


def rank_trees(trees: Trees, ranked: RankedNodes, demand: RowDemand, sizes: Sizes, keys: KeyLayout) -> None:
    """One launch: ranks the candidates of each tree."""
    slots, children = trees.is_used.shape[1] - 1, trees.is_open.shape[2]
    most, num_free = ranked.best.shape[1], ranked.free.shape[1]
    with launching_on(trees.length):
        rank_tree[(len(ranked.best),)](
            trees,
            ranked,
            demand,
            sizes,
            slots=slots,
            children=children,
            most=most,
            num_free=num_free,
            nothing=keys.nothing,
            read_first=keys.read_first,
            oldest=keys.oldest,
            node_bits=keys.node_bits,
            wide=up_to_power(slots),
            nodes=up_to_power((slots + 1) * children),
            # At least two, since a vector of one element is a scalar.
            places=max(2, up_to_power(most)),
            spots=up_to_power(num_free),
            rings=up_to_power(sizes.ring),
            num_warps=4,
        )


def lay_rows(
    trees: Trees, rows: StepRows, ranked: RankedNodes, found: Tensor, sizes: Sizes, keys: KeyLayout
) -> None:
    """One launch: writes the rows with these indices, which ascend. Later rows remain padding."""
    with launching_on(trees.length):
        lay_row[(len(found),)](
            trees,
            rows,
            ranked,
            found,
            sizes,
            slots=trees.is_used.shape[1] - 1,
            children=trees.is_open.shape[2],
            most=ranked.best.shape[1],
            num_free=ranked.free.shape[1],
            nothing=keys.nothing,
            node_bits=keys.node_bits,
            wide=up_to_power(len(found)),
            num_warps=1,
        )
