"""Arguments and shared functions of the kernels for a draft's trees.

The tables are documented in `draft/tree/tables.py`; in kernels they are addresses. Each row of a table
belongs to one sequence; row 0 is for padding. Knows tables. Does not know models.
"""

from typing import NamedTuple

from torch import Tensor

from ssd.kernels.language import jit, tl


class Trees(NamedTuple):
    is_live: Tensor
    is_new: Tensor
    steps_left: Tensor
    length: Tensor
    num_computed: Tensor
    last_position: Tensor
    max_length: Tensor
    max_depth: Tensor
    root_id: Tensor
    next_id: Tensor
    ring: Tensor
    blocks: Tensor
    ends: Tensor
    vocab: Tensor
    calibration: Tensor
    is_used: Tensor
    position: Tensor
    token: Tensor
    node_id: Tensor
    first_id: Tensor
    ancestors: Tensor
    value: Tensor
    parted: Tensor
    parted_rank: Tensor
    child_token: Tensor
    is_open: Tensor
    child_raw: Tensor
    child_value: Tensor
    counts: Tensor


class StepRows(NamedTuple):
    """The columns of `TreeRows` in `draft/tree`: a step's own rows, followed by rows of runs."""

    sequence: Tensor
    home: Tensor
    token: Tensor
    position: Tensor
    context_len: Tensor
    ancestors: Tensor
    target: Tensor
    slot: Tensor
    family: Tensor
    rank: Tensor
    node_id: Tensor
    value: Tensor
    start: Tensor
    key: Tensor
    is_read: Tensor
    attaches: Tensor


class Sizes(NamedTuple):
    """Constant sizes of tables and steps."""

    width: int
    """Nodes per step."""
    own_rows: int
    """Rows of a step before those of runs."""
    all_rows: int
    outcome: int
    ring: int
    ends: int
    block: int
    blocks: int
    first_tree_slot: int
    tree: int
    """KV slots per tree."""
    words: int
    """Offset from the first to the second word of a table of bits, in elements."""
    partings: int
    """The same offset of `parted`."""


class CalibrationParams(NamedTuple):
    """Parameters of the calibration in `draft/tree/apply.py`."""

    edges: Tensor
    num_ranks: int
    trust: float
    least: float
    memory: float


def up_to_power(count: int) -> int:
    """The next power of two: the length of Triton's vectors."""
    return 1 << max(0, count - 1).bit_length()


@jit()
def bit_of(slot, word: tl.constexpr, slots: tl.constexpr):
    """The bits of slots in a word; 0 for slots of the other word, and for the root's family."""
    is_here = (slot // 64 == word) & (slot < slots)
    return tl.where(is_here, tl.full([], 1, tl.int64) << (slot % 64).to(tl.int64), 0)


@jit()
def bits_of(is_meant, slot, word: tl.constexpr, slots: tl.constexpr):
    """The bits of the slots that `is_meant` selects, as one number."""
    return tl.sum(tl.where(is_meant, bit_of(slot, word, slots), 0), 0)


@jit()
def cells_of(logprobs, rank, part, edges, num_edges: tl.constexpr, num_ranks: tl.constexpr):
    """The calibration's cell of a guess: by its sequence's part, its rank and its float64 logprob."""
    behind = tl.zeros_like(logprobs).to(tl.int64)
    for number in tl.static_range(num_edges):
        # The comparison is reversed so that NaN counts as above every edge.
        behind += 1 - (tl.load(edges + number) >= logprobs).to(tl.int64)
    cell = tl.minimum(rank, num_ranks - 1).to(tl.int64) * (num_edges + 1) + behind
    return part * (num_ranks * (num_edges + 1)) + cell


@jit()
def text_slot(trees, sizes, sequence, position):
    """The KV slot of a position of the text."""
    number = tl.minimum(position // sizes.block, sizes.blocks - 1)
    return tl.load(trees.blocks + sequence * sizes.blocks + number) * sizes.block + position % sizes.block
