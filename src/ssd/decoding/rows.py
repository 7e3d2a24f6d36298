"""What a step is given and gives back: rows in, decided tokens out.

Knows the words between engine, decoder and proposers. Does not know requests, queues or text. What is made
for every sequence of every step is a msgspec struct: a frozen dataclass takes several times as long to make.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ssd.config import Acceptance
from ssd.draft.client.branching import check_tree
from ssd.sampling import Proposal, SampledToken, SamplingRow, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptScoring:
    """Prompt log-probabilities wanted from a row: of `tokens`, each given what stands before it."""

    tokens: Sequence[int]
    num_top: int


class Speculation(msgspec.Struct, frozen=True):
    """Tokens drafted to follow a sequence; under ratio acceptance with what each was drawn from."""

    tokens: tuple[int, ...] = ()
    proposals: tuple[Proposal, ...] | None = None
    parents: tuple[int, ...] | None = None
    """Of each token, the place of the one it follows, or -1: the text's end. Parents come before their
    children, the likelier of siblings first. None: a chain, the only form under ratio acceptance."""

    def __post_init__(self) -> None:
        check_tree(self.tokens, self.parents)
        if self.parents is not None and self.proposals is not None:
            raise ValueError("a tree with proposals: ratio acceptance verifies one path, so cut it to one")

    def first_proposals(self, count: int) -> tuple[Proposal, ...] | None:
        """Those of the first tokens, where the rest was cut."""
        return None if self.proposals is None else self.proposals[:count]


class DecodeRow(msgspec.Struct, frozen=True):
    """One sequence's share of a step: what its batch is written from, and how its tokens are decided."""

    tokens: Sequence[int]
    """Known tokens, then drafted ones."""
    start: int
    blocks: Sequence[int]
    generated: bool
    sampling: SamplingRow | None
    """How the token after the last known one is decided; None: the row decides nothing (a prompt chunk)."""
    num_drafted: int = 0
    scoring: PromptScoring | None = None
    seq_id: int = -1
    acceptance: Acceptance = "coupled"
    proposals: Sequence[Proposal] | None = None
    """Under ratio acceptance, of each drafted token; None: the tokens are guesses without a distribution."""
    parents: Sequence[int] | None = None
    """Of each drafted token, the place among them of the one it follows, or -1; None: a chain."""

    def __post_init__(self) -> None:
        if self.parents is not None and self.acceptance == "ratio":
            raise ValueError("a tree under ratio acceptance, which verifies one path: cut it to one")
        if self.proposals is not None and [each.token for each in self.proposals] != list(self.drafted):
            raise ValueError("the proposals are not those of the drafted tokens: cut both alike")

    @property
    def drafted(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.num_drafted :]

    @property
    def num_decided(self) -> int:
        """Places at which a token is decided."""
        return 0 if self.sampling is None else self.num_drafted + 1

    @property
    def num_logits(self) -> int:
        """Of its last tokens, how many have logits that are wanted."""
        return self.num_decided if self.scoring is None else len(self.tokens)

    @property
    def branches(self) -> None:
        """A text's next tokens, drafted or not; rows of a tree are made in `arenas.py`."""


@dataclass(frozen=True, slots=True)
class VerifiedTree:
    """A speculation of several paths as it was verified: for people, and for the keys of the path taken."""

    start: int
    """Tokens of the output before it."""
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    branch: tuple[int, ...]
    """The nodes that were accepted."""


class Decided(msgspec.Struct, frozen=True):
    tokens: tuple[SampledToken, ...] = ()
    """New tokens: none for a prompt chunk; else the accepted drafted ones and the target's own."""
    tree: VerifiedTree | None = None
    """What was verified, if that was no chain."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def branch(self) -> tuple[int, ...]:
        """Of a tree, the nodes that were accepted."""
        return () if self.tree is None else self.tree.branch


class DraftContext(msgspec.Struct, frozen=True):
    """A sequence that is about to decide its next token, or will when its prompt is computed."""

    seq_id: int
    sampling: SamplingRow
    max_len: int = 1 << 30
    """Its prompt and the most it may generate."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """When a draft computed, by the engine's clock, and how many rows."""

    started: float
    ended: float
    num_rows: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where the seconds of a step went, beside host work."""

    verify_started: float = 0.0
    verify: float = 0.0
    wait: float = 0.0
    num_rows: int = 0
    """Query rows of the verification."""
    num_sequences: int = 0
    num_speculated: int = 0
    """Sequences of it that had drafted tokens."""
    num_ready: int = 0
    """Sequences whose drafted tokens were there without waiting, from a draft that works ahead."""
    is_generating: bool = False
    """Every row of it was generated or drafted: no prompt was read."""
    aside: float = 0.0
    """Between launch and end, what was the time of neither: the engine's caller was busy or idle."""
    trees: tuple[VerifiedTree, ...] = ()
