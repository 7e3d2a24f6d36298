"""What every decoder is given and gives back: rows in, decided tokens out.

Knows rows of one step. Does not know requests, queues or text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ssd.runtime.runner import RunnerRow
from ssd.sampling import SampledToken, SamplingRow, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptScoring:
    """Prompt log-probabilities wanted from a row: of `tokens`, each given what stands before it."""

    tokens: Sequence[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One sequence's share of a step."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    generated: bool
    sampling: SamplingRow | None
    """How the token after the last one is decided; None: the row decides nothing (a prompt chunk)."""
    scoring: PromptScoring | None = None

    def to_runner(self) -> RunnerRow:
        num_logits = len(self.tokens) if self.scoring is not None else int(self.sampling is not None)
        return RunnerRow(self.tokens, self.start, self.blocks, num_logits, self.generated)


@dataclass(frozen=True, slots=True)
class Decided:
    tokens: tuple[SampledToken, ...] = ()
    """New tokens of the sequence: none for a prompt chunk, one without speculation."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Decoder(Protocol):
    def step(self, rows: Sequence[DecodeRow]) -> list[Decided]: ...
