"""Adds the rows of runs before a step's forward, and attaches its rows' children to the trees afterwards.

`run_rows`, `families`, `confirmed` and `attach_rows` of `draft/tree/forest.py` are the references. Three
launches follow a forward, since each needs the results of all rows of the one before: the first finds each
row's children, the second how much of each run is confirmed, the third updates the trees. Knows tables. Does
not know logits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.trees import CalibrationParams, Sizes, StepRows, Trees, bit_of, cells_of, up_to_power


class RunTable(NamedTuple):
    """The columns of `RunRows` in `draft/tree`."""

    owner: Tensor
    place: Tensor
    token: Tensor


class RawChildren(NamedTuple):
    """For each row, child tokens and the model's log-probabilities; −inf or NaN: no child."""

    tokens: Tensor
    raws: Tensor


class ChildTable(NamedTuple):
    """Each row's children between launches; existing children come first."""

    tokens: Tensor  # −1: no such child
    raws: Tensor
    logprobs: Tensor
    is_open: Tensor
    number: Tensor  # of children; 0 if the row is not attached
    next_id: Tensor  # of the row's sequence before the step
    taken: Tensor  # the child that a run continues with; −1: none

    @classmethod
    def of(cls, num_rows: int, children: int, device: torch.device) -> "ChildTable":
        size = (num_rows, children)
        tokens, *columns = (
            torch.zeros(each, dtype=torch.int64, device=device) for each in (size, *[size[:1]] * 3)
        )
        raws, logprobs = torch.zeros(size, device=device), torch.zeros(size, device=device)
        return cls(tokens, raws, logprobs, torch.zeros(size, dtype=torch.bool, device=device), *columns)


@jit()
def lay_run(trees, rows, runs, free, sizes, num_free: tl.constexpr, slots: tl.constexpr, wide: tl.constexpr):
    """One program per row of a run. Its slot follows those of its tree's other rows and of its run."""
    number = tl.program_id(0).to(tl.int64)
    row = sizes.own_rows + number
    owner, place = tl.load(runs.owner + number), tl.load(runs.place + number)
    is_run = owner >= 0
    owner = tl.maximum(owner, 0)
    home = tl.load(rows.home + owner)
    sequence = tl.where(is_run, tl.load(rows.sequence + owner), 0)
    own = tl.arange(0, wide)
    homes = tl.load(rows.home + own, mask=own < sizes.own_rows, other=-1)
    # A root that is being read takes no slot, and its tree has no other rows in this step.
    is_read = tl.load(rows.is_read + owner) != 0
    others = tl.where(is_read, 0, tl.sum((homes == home).to(tl.int64), 0))
    parent = tl.load(rows.slot + owner)
    all_rows = sizes.all_rows
    low = tl.load(rows.ancestors + owner) | bit_of(parent, 0, slots)
    high = tl.load(rows.ancestors + all_rows + owner) | bit_of(parent, 1, slots)
    for earlier in range(place):
        slot = tl.load(free + sequence * num_free + tl.minimum(earlier + others, num_free - 1))
        low, high = low | bit_of(slot, 0, slots), high | bit_of(slot, 1, slots)
    slot = tl.load(free + sequence * num_free + tl.minimum(place + others, num_free - 1))
    slot = tl.where(is_run, slot, slots)
    position = tl.load(rows.position + owner) + 1 + place
    tl.store(rows.sequence + row, sequence)
    tl.store(rows.home + row, home)
    tl.store(rows.token + row, tl.where(is_run, tl.load(runs.token + number), 0))
    tl.store(rows.position + row, tl.where(is_run, position, 0))
    tl.store(rows.context_len + row, tl.load(trees.length + sequence))
    tl.store(rows.ancestors + row, tl.where(is_run, low, 0))
    tl.store(rows.ancestors + all_rows + row, tl.where(is_run, high, 0))
    tl.store(rows.target + row, sizes.first_tree_slot + sequence * sizes.tree + tl.where(is_run, slot, 0))
    tl.store(rows.slot + row, slot)
    tl.store(rows.family + row, 0)
    tl.store(rows.rank + row, 0)
    tl.store(rows.node_id + row, 0)
    tl.store(rows.value + row, tl.where(is_run, tl.load(rows.value + owner), 0.0))
    tl.store(rows.start + row, row - place)
    tl.store(rows.key + row, tl.load(rows.key + owner))
    tl.store(rows.is_read + row, 0)
    tl.store(rows.attaches + row, is_run)


@jit()
def find_families(
    trees,
    rows,
    raw,
    found,
    edges,
    sizes,
    trust: tl.constexpr,
    least: tl.constexpr,
    children: tl.constexpr,
    num_edges: tl.constexpr,
    num_ranks: tl.constexpr,
    num_cells,
    kids: tl.constexpr,
    ends: tl.constexpr,
):
    """One program per row: calibrates its children's log-probabilities, finds which exist and are open."""
    row = tl.program_id(0).to(tl.int64)
    sequence, rank = tl.load(rows.sequence + row), tl.arange(0, kids)
    is_rank = rank < children
    tokens = tl.load(raw.tokens + row * children + rank, mask=is_rank, other=0)
    raws = tl.load(raw.raws + row * children + rank, mask=is_rank, other=float("-inf"))
    exists = (raws > float("-inf")) & (tokens < tl.load(trees.vocab + sequence))
    exact = raws.to(tl.float64)
    cells = cells_of(exact, rank, tl.load(trees.calibration + sequence), edges, num_edges, num_ranks)
    seen, taken = tl.load(trees.counts + cells), tl.load(trees.counts + num_cells + cells)
    rates = (taken + trust * tl.exp(exact)) / (seen + trust)
    logprobs = tl.minimum(tl.log(tl.maximum(rates, least)), 0.0).to(tl.float32)
    end = tl.arange(0, ends)
    ending = tl.load(trees.ends + sequence * sizes.ends + end, mask=end < sizes.ends, other=-1)
    is_end = tl.max((tokens[:, None] == ending[None, :]).to(tl.int32), 1) != 0
    # Tokens outside the target's vocabulary get no id, so ids have no gaps.
    number = tl.sum(exists.to(tl.int64), 0)
    missing = is_rank & ~exists
    place = tl.where(exists, tl.cumsum(exists.to(tl.int64), 0), number + tl.cumsum(missing.to(tl.int64), 0))
    spots = row * children + place - 1
    tl.store(found.tokens + spots, tl.where(exists, tokens, -1), mask=is_rank)
    tl.store(found.raws + spots, raws, mask=is_rank)
    tl.store(found.logprobs + spots, logprobs, mask=is_rank)
    tl.store(found.is_open + spots, exists & ~is_end, mask=is_rank)
    tl.store(found.number + row, tl.where(tl.load(rows.attaches + row) != 0, number, 0))
    tl.store(found.next_id + row, tl.load(trees.next_id + sequence))
    tl.store(found.taken + row, -1)


@jit()
def confirm(rows, runs, found, sizes, children: tl.constexpr, kids: tl.constexpr):
    """One program per row of a run: whether its token, and those before it in the run, are children."""
    number = tl.program_id(0).to(tl.int64)
    row = sizes.own_rows + number
    owner, place = tl.load(runs.owner + number), tl.load(runs.place + number)
    rank = tl.arange(0, kids)
    holds, value = owner >= 0, tl.load(rows.value + row)
    parent, taken = tl.maximum(owner, 0), tl.full([], 0, tl.int32)
    for back in range(place + 1):
        # From the run's first row to this one.
        parent = tl.where(back == 0, tl.maximum(owner, 0), row - place + back - 1)
        spots, is_rank = found.tokens + parent * children + rank, rank < children
        wanted = tl.load(runs.token + number - place + back)
        tokens = tl.load(spots, mask=is_rank, other=-1)
        is_open = tl.load(found.is_open + parent * children + rank, mask=is_rank, other=0) != 0
        is_alike = is_open & (tokens == wanted)
        gain = tl.load(found.logprobs + parent * children + rank, mask=is_alike, other=0.0)
        holds = holds & (tl.sum(is_alike.to(tl.int32), 0) > 0)
        value += tl.sum(gain.to(tl.float64), 0)
        taken = tl.sum(tl.where(is_alike, rank, 0), 0)
    tl.store(rows.attaches + row, holds)
    tl.store(rows.family + row, tl.load(rows.slot + parent))
    tl.store(rows.rank + row, taken)
    tl.store(rows.value + row, value)
    tl.store(found.number + row, tl.where(holds, tl.load(found.number + row), 0))
    tl.store(found.taken + parent, taken, mask=holds)


@jit()
def attach(
    trees,
    rows,
    found,
    runs,
    fresh,
    sizes,
    slots: tl.constexpr,
    children: tl.constexpr,
    head: tl.constexpr,
    kids: tl.constexpr,
    wide: tl.constexpr,
):
    """One program per row: stores its node and its children in the tree, and closes it for selection.

    Ids continue within a sequence in the order of its rows; rows of runs come last.
    """
    row = tl.program_id(0).to(tl.int64)
    sequence, attaches = tl.load(rows.sequence + row), tl.load(rows.attaches + row) != 0
    is_read, value = tl.load(rows.is_read + row) != 0, tl.load(rows.value + row)
    every = tl.arange(0, wide)
    is_row = every < sizes.all_rows
    mine = tl.load(rows.sequence + every, mask=is_row, other=-1) == sequence
    numbers = tl.where(mine, tl.load(found.number + every, mask=is_row, other=0), 0)
    next_id = tl.load(found.next_id + row)
    first_id = next_id + tl.sum(tl.where(every < row, numbers, 0), 0)
    node_id, node_rank = tl.load(rows.node_id + row), tl.load(rows.rank + row)
    if row >= sizes.own_rows:
        # In a run the node is a child of another row of this step.
        number, place = row - sizes.own_rows, tl.load(runs.place + row - sizes.own_rows)
        parent = tl.where(place == 0, tl.maximum(tl.load(runs.owner + number), 0), row - 1)
        node_id = next_id + tl.sum(tl.where(every < parent, numbers, 0), 0) + node_rank
    rank = tl.arange(0, kids)
    is_rank = rank < children
    tokens = tl.load(found.tokens + row * children + rank, mask=is_rank, other=-1)
    logprobs = tl.load(found.logprobs + row * children + rank, mask=is_rank, other=0.0)
    number = tl.load(found.number + row)
    row_start = fresh + row * (head + 2 * children)
    tl.store(row_start, sequence.to(tl.int32))
    tl.store(row_start + 1, number.to(tl.int32))
    tl.store(row_start + 2, node_id.to(tl.int32))
    tl.store(row_start + 3, first_id.to(tl.int32))
    tl.store(row_start + 4, tl.load(trees.root_id + sequence).to(tl.int32))
    tl.store(row_start + head + rank, tokens.to(tl.int32), mask=is_rank)
    tl.store(row_start + head + children + rank, logprobs.to(tl.int32, bitcast=True), mask=is_rank)
    if is_read:
        tl.atomic_add(trees.num_computed + sequence, 1)
    if attaches:
        slot = tl.load(rows.slot + row)
        spot = sequence * (slots + 1) + slot
        tl.store(trees.is_used + spot, 1)
        tl.store(trees.position + spot, tl.load(rows.position + row))
        tl.store(trees.token + spot, tl.load(rows.token + row))
        tl.store(trees.node_id + spot, node_id)
        tl.store(trees.first_id + spot, first_id)
        tl.store(trees.ancestors + spot, tl.load(rows.ancestors + row))
        tl.store(trees.ancestors + sizes.words + spot, tl.load(rows.ancestors + sizes.all_rows + row))
        tl.store(trees.value + spot, value)
        nodes = spot * children + rank
        # A child that a run continues with is already a node.
        is_open = tl.load(found.is_open + row * children + rank, mask=is_rank, other=0) != 0
        is_open = is_open & (rank != tl.load(found.taken + row))
        tl.store(trees.child_token + nodes, tokens, mask=is_rank)
        tl.store(trees.is_open + nodes, is_open, mask=is_rank)
        raws = tl.load(found.raws + row * children + rank, mask=is_rank, other=0.0)
        tl.store(trees.child_raw + nodes, raws, mask=is_rank)
        tl.store(trees.child_value + nodes, value + logprobs.to(tl.float64), mask=is_rank)
        tl.atomic_add(trees.next_id + sequence, number)
        if is_read:
            tl.store(trees.is_new + sequence, 0)
        elif row < sizes.own_rows:
            family = sequence * (slots + 1) + tl.load(rows.family + row)
            tl.store(trees.is_open + family * children + node_rank, 0)


def lay_runs(trees: Trees, rows: StepRows, runs: RunTable, free: Tensor, sizes: Sizes) -> None:
    """One launch: writes the rows of runs after the selected rows."""
    with launching_on(rows.sequence):
        lay_run[(len(runs.owner),)](
            trees,
            rows,
            runs,
            free,
            sizes,
            num_free=free.shape[1],
            slots=trees.is_used.shape[1] - 1,
            wide=up_to_power(sizes.own_rows),
            num_warps=1,
        )


def attach_children(
    trees: Trees,
    rows: StepRows,
    raw: RawChildren,
    runs: RunTable,
    found: ChildTable,
    fresh: Tensor,
    sizes: Sizes,
    learning: CalibrationParams,
) -> None:
    """Three launches, or two if there are no runs."""
    slots, children, num_cells = trees.is_used.shape[1] - 1, trees.is_open.shape[2], trees.counts.shape[1]
    num_runs, kids = len(runs.owner), up_to_power(children)
    with launching_on(rows.sequence):
        find_families[(sizes.all_rows,)](
            trees,
            rows,
            raw,
            found,
            learning.edges,
            sizes,
            trust=learning.trust,
            least=learning.least,
            children=children,
            num_edges=len(learning.edges),
            num_ranks=learning.num_ranks,
            num_cells=num_cells,
            kids=kids,
            ends=up_to_power(sizes.ends),
            num_warps=1,
        )
        if num_runs:
            confirm[(num_runs,)](rows, runs, found, sizes, children=children, kids=kids, num_warps=1)
        attach[(sizes.all_rows,)](
            trees,
            rows,
            found,
            runs,
            fresh,
            sizes,
            slots=slots,
            children=children,
            head=fresh.shape[1] - 2 * children,
            kids=kids,
            wide=up_to_power(sizes.all_rows),
            num_warps=1,
        )
