"""What attention is asked to do, whatever computes it.

Knows spans: which rows of a forward belong to one sequence, and where its keys lie.
Does not know models or schedulers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Branches:
    """Rows that are nodes of a tree over a common trunk, instead of one text's next tokens.

    A sequence's slots are then its trunk and, behind it, tree nodes in the order in which they
    were computed; a node's position in the text follows from its path, not from its slot.
    """

    positions: Sequence[int]
    """Of each row, its place in the text."""
    num_trunk: int
    """The slots before this one are seen by every row."""
    ancestors: Sequence[Sequence[int]]
    """Of each row, the slots from `num_trunk` on that it sees beside its own."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of a forward that continue one sequence."""

    row: int
    """The first row."""
    count: int
    start: int
    """The position of the first row; the rows see every position before them."""
    blocks: Sequence[int]
    """The sequence's block table; its order, not the blocks' numbers, is the order of keys."""
    branches: Branches | None = None
    """Given: `start` is the first row's slot, and what a row sees is said there."""


class AttentionPlan(Protocol):
    """One forward's attention, prepared once and used by every layer."""

    def attend(self, layer: int, queries: "Tensor", keys: "Tensor", values: "Tensor") -> "Tensor":
        """Stores keys and values, [rows, kv_heads, head_dim], then attends with queries,
        [rows, heads, head_dim], and returns [rows, heads · head_dim]. Rows outside every
        span are padding: they store nothing and what is returned for them means nothing."""
        ...


class AttentionBackend(Protocol):
    def plan(self, spans: Sequence[Span], num_rows: int) -> AttentionPlan: ...
