"""What every decoder is given and gives back: rows in, decided tokens out.

Knows rows of one step. Does not know requests, queues or text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ssd.config import Acceptance
from ssd.runtime.runner import RunnerRow
from ssd.sampling import Proposal, SampledToken, SamplingRow, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptScoring:
    """Prompt log-probabilities wanted from a row: of `tokens`, each given what stands before it."""

    tokens: Sequence[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens drafted to follow a sequence; under ratio acceptance with what each was drawn from."""

    tokens: tuple[int, ...] = ()
    proposals: tuple[Proposal, ...] | None = None

    def first_proposals(self, count: int) -> tuple[Proposal, ...] | None:
        """Those of the first tokens, where the rest was cut."""
        return None if self.proposals is None else self.proposals[:count]


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One sequence's share of a step."""

    tokens: Sequence[int]
    """Known tokens, then drafted ones."""
    start: int
    blocks: Sequence[int]
    generated: bool
    sampling: SamplingRow | None
    """How the token after the last known one is decided; None: the row decides nothing (a prompt chunk)."""
    num_drafted: int = 0
    scoring: PromptScoring | None = None
    acceptance: Acceptance = "coupled"
    proposals: Sequence[Proposal] | None = None
    """Under ratio acceptance, of each drafted token; None: the tokens are guesses without a distribution."""

    def __post_init__(self) -> None:
        if self.proposals is not None and [each.token for each in self.proposals] != list(self.drafted):
            raise ValueError("the proposals are not those of the drafted tokens: cut both alike")

    @property
    def drafted(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.num_drafted :]

    def to_runner(self) -> RunnerRow:
        num_decided = 0 if self.sampling is None else self.num_drafted + 1
        num_logits = len(self.tokens) if self.scoring is not None else num_decided
        return RunnerRow(self.tokens, self.start, self.blocks, num_logits, self.generated)


@dataclass(frozen=True, slots=True)
class Decided:
    tokens: tuple[SampledToken, ...] = ()
    """New tokens: none for a prompt chunk; else the accepted drafted ones and the target's own."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftContext:
    """A sequence that is about to decide its next token."""

    seq_id: int
    sampling: SamplingRow


class Decoder(Protocol):
    @property
    def is_drafting(self) -> bool:
        """Whether it is worth asking for proposals."""
        ...

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        """Tokens guessed to come next in each sequence; none where there is no guess."""
        ...

    def step(self, rows: Sequence[DecodeRow]) -> list[Decided]: ...

    def forget(self, seq_id: int) -> None:
        """The sequence has ended or given way: whatever is kept for it can go."""
        ...
