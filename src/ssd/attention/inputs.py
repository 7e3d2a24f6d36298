"""What a batch is written from: rows of tokens, and how they are laid out. Data only, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Branches:
    """Tokens that are nodes of a tree over a trunk, instead of one text's next ones."""

    positions: Sequence[int]
    """Of each token, its place in the text."""
    num_trunk: int
    """Keys of the block table that every one of them sees."""
    tree_start: int
    """The first of the tree's slots."""
    nodes: Sequence[int]
    """The index of each token's slot among the tree's slots."""
    paths: Sequence[int]
    """Of each token, the nodes that it sees, its own among them: a bit for each place."""


class SequenceInput(Protocol):
    """One sequence's share of a forward: what a batch is written from."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def start(self) -> int:
        """Position of the first token; of branches, of no meaning."""
        ...

    @property
    def blocks(self) -> Sequence[int]: ...

    @property
    def num_logits(self) -> int:
        """Logits are wanted for the last so many tokens."""
        ...

    @property
    def generated(self) -> bool:
        """Generated tokens, not prompt tokens: deterministic mode tiles them differently."""
        ...

    @property
    def branches(self) -> Branches | None: ...


@dataclass(frozen=True, slots=True)
class PlainInput:
    """A row of nothing but what a forward needs."""

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
    """The row after its last."""
    seen: int
    """Keys of the table that the first row sees; of a text each further row sees one more, its own."""
    num_nodes: int = 0
    """The rows' paths lie within the first `num_nodes` tree slots; 0: plain text."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which row of a batch each sequence's first token takes, and how rows are tiled."""

    first_rows: tuple[int, ...]
    num_rows: int
    """With padding."""
    tiles: tuple[int, ...] = ()
    num_wanted: int | None = None
    """With padding; None: as many as are wanted."""
    head_tiles: tuple[int, ...] = ()
    num_sequences: int | None = None
    """With padding, and without nobody; None: as many as there are."""
    num_blocks: int | None = None
    """Columns of the tables; None: as many as the longest needs."""
