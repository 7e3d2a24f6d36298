"""Input and output of a step: rows in, decided tokens out.

Defines the values that engine, decoder and proposers exchange. Does not know requests, queues or text. Values
made for every sequence of every step are msgspec structs: frozen dataclasses take several times as long to
create.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ssd.draft.client.proposals import check_tree
from ssd.sampling import SampledToken, SamplingRow, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptScoring:
    """Prompt log-probabilities wanted from a row: of each of `tokens`, given the tokens before it."""

    tokens: Sequence[int]
    num_top: int


class Speculation(msgspec.Struct, frozen=True):
    """Tokens drafted to follow a sequence."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    """The index of each token's parent, or -1 for the text's end. Parents come before their children,
    likelier siblings first. None: a chain."""

    def __post_init__(self) -> None:
        check_tree(self.tokens, self.parents)


class DecodeRow(msgspec.Struct, frozen=True):
    """One sequence's part of a step: its tokens and blocks, and how new tokens are decided."""

    tokens: Sequence[int]
    """Known tokens, then drafted ones."""
    start: int
    blocks: Sequence[int]
    generated: bool
    sampling: SamplingRow | None
    """How the token after the last known one is decided; None: none is decided (a prompt chunk)."""
    num_drafted: int = 0
    scoring: PromptScoring | None = None
    seq_id: int = -1
    parents: Sequence[int] | None = None
    """The index of each drafted token's parent among them, or -1; None: a chain."""

    @property
    def drafted(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.num_drafted :]

    @property
    def num_decided(self) -> int:
        """The number of positions at which a token is decided."""
        return 0 if self.sampling is None else self.num_drafted + 1

    @property
    def num_logits(self) -> int:
        """The number of its last tokens whose logits are wanted."""
        return self.num_decided if self.scoring is None else len(self.tokens)

    @property
    def branches(self) -> None:
        """None: not a row of tree nodes. Those are made in `tree_slots.py`."""


@dataclass(frozen=True, slots=True)
class VerifiedTree:
    """A verified speculation of several paths: for display, and to move the accepted path's keys."""

    start: int
    """The number of output tokens before it."""
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    branch: tuple[int, ...]
    """The nodes that were accepted."""


class Decided(msgspec.Struct, frozen=True):
    tokens: tuple[SampledToken, ...] = ()
    """New tokens: the accepted drafted ones and the target's own; none for a prompt chunk."""
    tree: VerifiedTree | None = None
    """The verified tree; None: it was a chain."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def branch(self) -> tuple[int, ...]:
        """The accepted nodes of the tree."""
        return () if self.tree is None else self.tree.branch


class DraftContext(msgspec.Struct, frozen=True):
    """What a proposer needs to know of a sequence."""

    seq_id: int
    sampling: SamplingRow
    max_len: int = 1 << 30
    """The longest it may become, prompt included."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """The time span of a draft step, by the engine's clock, and its number of rows."""

    started: float
    ended: float
    num_rows: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of a step in seconds, and its counts."""

    verify_started: float = 0.0
    verify: float = 0.0
    wait: float = 0.0
    num_rows: int = 0
    """Query tokens of the verification."""
    num_sequences: int = 0
    num_speculated: int = 0
    """Sequences with drafted tokens."""
    num_ready: int = 0
    """Sequences whose drafted tokens were ready without waiting, in mode `ssd`."""
    is_generating: bool = False
    """All rows have generated tokens: no prompt was computed."""
    aside: float = 0.0
    """Time between launch and end while the engine's caller had control; not part of the step."""
    trees: tuple[VerifiedTree, ...] = ()
