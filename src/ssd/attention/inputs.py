"""The inputs of a batch: rows of tokens and their layout. Data only, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Branches:
    """Makes a sequence's tokens nodes of a tree after a common prefix."""

    positions: Sequence[int]
    """Each token's position in the text."""
    num_prefix: int
    """Number of leading keys of the block table that all tokens see."""
    tree_start: int
    """The first of the tree's slots."""
    nodes: Sequence[int]
    """Index of each token's slot among the tree's slots."""
    paths: Sequence[int]
    """For each token, a bit for each tree slot that it sees, including its own."""


class SequenceInput(Protocol):
    """One sequence's part of a forward."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def start(self) -> int:
        """Position of the first token; meaningless with branches."""
        ...

    @property
    def blocks(self) -> Sequence[int]: ...

    @property
    def num_logits(self) -> int:
        """Number of tokens, counted from the last, that need logits."""
        ...

    @property
    def generated(self) -> bool:
        """Whether the tokens are generated or from the prompt: deterministic mode tiles them differently."""
        ...

    @property
    def branches(self) -> Branches | None: ...


@dataclass(frozen=True, slots=True)
class PlainInput:
    """A `SequenceInput` without further fields."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int
    generated: bool
    branches: Branches | None = None


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Consecutive rows of a batch that belong to one sequence."""

    sequence: int
    first: int
    last: int
    """The index after the last row."""
    seen: int
    """Number of the table's keys that the first row sees; in plain text each further row sees one more."""
    num_nodes: int = 0
    """The rows' paths use the first `num_nodes` tree slots; 0: plain text."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The row of each sequence's first token, and the tiling of rows."""

    first_rows: tuple[int, ...]
    num_rows: int
    """Including padding."""
    tiles: tuple[int, ...] = ()
    num_wanted: int | None = None
    """Number of rows that need logits, including padding; None: no padding."""
    head_tiles: tuple[int, ...] = ()
    num_sequences: int | None = None
    """Including padding, but without the sequence of padding rows; None: no padding."""
    num_blocks: int | None = None
    """Number of columns of the tables; None: the longest table's."""
