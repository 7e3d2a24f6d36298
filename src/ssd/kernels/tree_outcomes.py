"""Applies a batch of outcomes to the trees: one program per sequence, then one launch for the calibration.

`apply_outcomes` of `draft/tree/apply.py` is the reference. A program reads all it needs of its tree before it
writes. Knows tables. Does not know messages.
"""

from typing import NamedTuple

from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.trees import (
    CalibrationParams,
    Sizes,
    Trees,
    bit_of,
    bits_of,
    cells_of,
    text_slot,
    up_to_power,
)

_FADING = 1024
"""Cells of the calibration per program."""


class OutcomeTokens(NamedTuple):
    """For each sequence, the number of decided tokens, and the tokens."""

    number: Tensor
    tokens: Tensor


class SlotMoves(NamedTuple):
    """For each sequence and token, the KV slots to copy from and to."""

    sources: Tensor
    targets: Tensor


@jit()
def foreseen(trees, sizes, tokens, here, count, slot, place, slots: tl.constexpr):
    """The number of outcome tokens that the tree contains, and the families on that path, the root's first.

    A slot is on the path if its token and those of all its ancestors match the outcome.
    """
    spots, is_slot = here * (slots + 1) + slot, slot <= slots
    length = tl.load(trees.length + here)
    at = tl.load(trees.position + spots, mask=is_slot, other=0) - length
    is_inside = (tl.load(trees.is_used + spots, mask=is_slot, other=0) != 0) & (at >= 0) & (at < count)
    is_inside = is_inside & (tl.load(trees.num_computed + here) == length)
    wanted = tl.load(tokens + tl.where(is_inside, at, 0))
    is_right = is_inside & (wanted == tl.load(trees.token + spots, mask=is_slot, other=0))
    low = tl.load(trees.ancestors + spots, mask=is_slot, other=0)
    high = tl.load(trees.ancestors + sizes.words + spots, mask=is_slot, other=0)
    astray = (low & ~bits_of(is_right, slot, 0, slots)) | (high & ~bits_of(is_right, slot, 1, slots))
    on_path = is_right & (astray == 0)
    is_next = on_path[:, None] & (at[:, None] + 1 == place[None, :])
    chain = tl.max(tl.where(is_next, slot[:, None], 0), 0)
    return tl.sum(on_path.to(tl.int64), 0), tl.where(place == 0, slots, chain)


@jit()
def teach(
    trees,
    edges,
    here,
    families,
    is_judged,
    decided,
    rank,
    children: tl.constexpr,
    num_edges: tl.constexpr,
    num_ranks: tl.constexpr,
    num_cells,
):
    """Counts each family on the path for the calibration. Adds ones, so the order does not matter."""
    nodes = families[:, None] * children + rank[None, :]
    is_guess = is_judged[:, None] & (rank < children)[None, :]
    tokens = tl.load(trees.child_token + nodes, mask=is_guess, other=-1)
    logprobs = tl.load(trees.child_raw + nodes, mask=is_guess, other=0.0).to(tl.float64)
    cells = cells_of(logprobs, rank[None, :], tl.load(trees.calibration + here), edges, num_edges, num_ranks)
    is_guess = is_guess & (tokens >= 0)
    ones = is_guess.to(tl.float64)
    tl.atomic_add(trees.counts + cells, ones, mask=is_guess)
    tl.atomic_add(trees.counts + num_cells + cells, ones, mask=is_guess & (tokens == decided[:, None]))


@jit()
def known_child(trees, family, token, rank, children: tl.constexpr):
    """Whether a family contains this token, and the node's id."""
    is_child = rank < children
    tokens = tl.load(trees.child_token + family * children + rank, mask=is_child, other=-1)
    is_alike = is_child & (tokens == token) & (tl.load(trees.is_used + family) != 0)
    node_id = tl.load(trees.first_id + family) + tl.sum(tl.where(is_alike, rank, 0), 0)
    return tl.sum(is_alike.to(tl.int32), 0) > 0, node_id


@jit()
def read_on(
    trees,
    moves_out,
    sizes,
    here,
    decided,
    grown,
    count,
    chain,
    place,
    slots: tl.constexpr,
):
    """Appends the outcome to the text, and plans moves of accepted nodes' keys into the KV blocks."""
    length, is_moved = tl.load(trees.length + here), (place > 0) & (place <= grown)
    target = text_slot(trees, sizes, here, length + tl.where(is_moved, place - 1, 0))
    source = sizes.first_tree_slot + here * sizes.tree + chain
    end = length + count
    depth = tl.minimum(tl.load(trees.max_depth + here), tl.load(trees.max_length + here) - 2 - end)
    num_computed = tl.load(trees.num_computed + here) + grown
    tl.debug_barrier()
    moves, is_place = here * sizes.outcome + place - 1, (place > 0) & (place <= sizes.outcome)
    tl.store(moves_out.sources + moves, tl.where(is_moved, source, sizes.first_tree_slot), mask=is_place)
    tl.store(moves_out.targets + moves, tl.where(is_moved, target, sizes.first_tree_slot), mask=is_place)
    tl.store(trees.ring + here * sizes.ring + (length + place) % sizes.ring, decided, mask=place < count)
    tl.store(trees.position + here * (slots + 1) + slots, end - 1)
    tl.store(trees.last_position + here, end - 1 + depth)
    tl.store(trees.num_computed + here, num_computed)
    tl.store(trees.length + here, end)


@jit()
def drop_lost(trees, sizes, first, last, is_hit, slot, rank, slots: tl.constexpr, children: tl.constexpr):
    """Keeps the nodes below the new root, with values relative to it, and makes its family the root's."""
    spots, root, is_slot = first + slot, first + slots, slot <= slots
    is_node = is_slot[:, None] & (rank < children)[None, :]
    low = tl.load(trees.ancestors + spots, mask=is_slot, other=0)
    high = tl.load(trees.ancestors + sizes.words + spots, mask=is_slot, other=0)
    is_below = ((low & bit_of(last - first, 0, slots)) | (high & bit_of(last - first, 1, slots))) != 0
    kept = is_below & is_hit & (tl.load(trees.is_used + spots, mask=is_slot, other=0) != 0)
    low, high = low & bits_of(kept, slot, 0, slots), high & bits_of(kept, slot, 1, slots)
    value = tl.load(trees.value + spots, mask=is_slot, other=0.0)
    base = tl.where(is_hit, tl.load(trees.value + last), 0.0)
    source = tl.where(is_hit, last, root)
    came_from = tl.where(slot == slots, source, spots)[:, None] * children + rank[None, :]
    child_value = tl.load(trees.child_value + came_from, mask=is_node, other=0.0)
    # All threads must have read before any of them writes.
    tl.debug_barrier()
    tl.store(trees.is_used + spots, tl.where(slot == slots, is_hit, kept), mask=is_slot)
    tl.store(trees.ancestors + spots, low, mask=is_slot)
    tl.store(trees.ancestors + sizes.words + spots, high, mask=is_slot)
    tl.store(trees.value + spots, value - base, mask=is_slot)
    tl.store(trees.child_value + spots[:, None] * children + rank[None, :], child_value - base, mask=is_node)
    # Only the root's family is written; if it is also the source, it is copied onto itself.
    copy_family(trees.child_token, source, root, rank, children)
    copy_family(trees.is_open, source, root, rank, children)
    copy_family(trees.child_raw, source, root, rank, children)
    tl.store(trees.first_id + root, tl.load(trees.first_id + source))
    tl.store(trees.parted + root, tl.load(trees.parted + source))
    tl.store(trees.parted + sizes.partings + root, tl.load(trees.parted + sizes.partings + source))
    tl.store(trees.parted_rank + root, tl.load(trees.parted_rank + source))


@jit()
def copy_family(table, source, target, rank, children: tl.constexpr):
    is_child = rank < children
    tl.store(
        table + target * children + rank,
        tl.load(table + source * children + rank, mask=is_child),
        mask=is_child,
    )


@jit()
def apply_outcome(
    trees,
    outcomes,
    moves_out,
    sizes,
    edges,
    slots: tl.constexpr,
    children: tl.constexpr,
    num_edges: tl.constexpr,
    num_ranks: tl.constexpr,
    num_cells,
    wide: tl.constexpr,
    kids: tl.constexpr,
    places: tl.constexpr,
):
    """One program per sequence. `wide`, `kids` and `places` are powers of two, at least the actual sizes."""
    here = tl.program_id(0).to(tl.int64)
    count = tl.load(outcomes.number + here)
    place = tl.arange(0, places)
    if count == 0:
        moves, is_place = here * sizes.outcome + place - 1, (place > 0) & (place <= sizes.outcome)
        tl.store(moves_out.sources + moves, place * 0 + sizes.first_tree_slot, mask=is_place)
        tl.store(moves_out.targets + moves, place * 0 + sizes.first_tree_slot, mask=is_place)
        return

    slot, rank = tl.arange(0, wide), tl.arange(0, kids)
    first = here * (slots + 1)
    tokens = outcomes.tokens + here * sizes.outcome
    decided = tl.load(tokens + place, mask=place < count, other=0)
    is_ready = tl.load(trees.num_computed + here) == tl.load(trees.length + here)
    grown, chain = foreseen(trees, sizes, tokens, here, count, slot, place, slots)
    last = first + tl.sum(tl.where(place == grown, chain, 0), 0)
    is_judged = (place < count) & (place <= grown) & is_ready & (tl.load(trees.is_used + first + slots) != 0)
    judged = first + tl.where(is_judged, chain, slots)
    teach(trees, edges, here, judged, is_judged, decided, rank, children, num_edges, num_ranks, num_cells)

    # The new root is a processed node (hit), a known child (late), or unknown (miss).
    is_hit = is_ready & (grown == count)
    following = tl.load(tokens + tl.minimum(grown, sizes.outcome - 1))
    is_known, known_id = known_child(trees, last, following, rank, children)
    is_late = is_ready & (grown + 1 == count) & is_known
    next_id = tl.load(trees.next_id + here)
    root_id = tl.where(is_late, known_id, next_id)
    root_id = tl.where(is_hit, tl.load(trees.node_id + last), root_id)
    tl.debug_barrier()
    tl.store(trees.root_id + here, root_id)
    tl.store(trees.next_id + here, tl.where(is_hit | is_late, next_id, next_id + 1))
    tl.store(outcomes.number + here, 0)
    read_on(trees, moves_out, sizes, here, decided, grown, count, chain, place, slots)
    drop_lost(trees, sizes, first, last, is_hit, slot, rank, slots, children)


@jit()
def fade(counts, num_cells, memory: tl.constexpr, wide: tl.constexpr):
    """One program per group of cells: halves the counts of cells that were seen more than `memory` times."""
    cell = tl.program_id(0) * wide + tl.arange(0, wide)
    is_cell = cell < num_cells
    seen = tl.load(counts + cell, mask=is_cell, other=0.0)
    taken = tl.load(counts + num_cells + cell, mask=is_cell, other=0.0)
    share = tl.where(seen > memory, 0.5, 1.0)
    tl.store(counts + cell, seen * share, mask=is_cell)
    tl.store(counts + num_cells + cell, taken * share, mask=is_cell)


def apply_outcome_tokens(
    trees: Trees, outcomes: OutcomeTokens, moves_out: SlotMoves, sizes: Sizes, learning: CalibrationParams
) -> None:
    """Two launches: the trees, then the decay of the calibration's counts."""
    slots, children, num_cells = trees.is_used.shape[1] - 1, trees.is_open.shape[2], trees.counts.shape[1]
    with launching_on(trees.length):
        apply_outcome[(len(outcomes.number),)](
            trees,
            outcomes,
            moves_out,
            sizes,
            learning.edges,
            slots=slots,
            children=children,
            num_edges=len(learning.edges),
            num_ranks=learning.num_ranks,
            num_cells=num_cells,
            wide=up_to_power(slots + 1),
            kids=up_to_power(children),
            places=up_to_power(sizes.outcome + 1),
            num_warps=8,
        )
        fade[(-(-num_cells // _FADING),)](
            trees.counts,
            memory=learning.memory,
            num_cells=num_cells,
            wide=_FADING,
            num_warps=4,
        )
