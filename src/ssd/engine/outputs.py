"""What callers receive: increments while a request runs, one output when it ends.

Plain values; they know nothing of how they came about.
"""

from dataclasses import dataclass, field
from typing import Literal

from ssd.sampling import TokenLogprobs

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, as the engine saw them."""

    queued: float
    """From arrival to the first forward."""
    first_token: float
    """From arrival to the first token."""
    total: float
    num_output_tokens: int
    """Of the longest of the request's sequences."""

    @property
    def per_output_token(self) -> float | None:
        """Mean time of a token after the first; None where there is none."""
        if self.num_output_tokens < 2:
            return None
        return (self.total - self.first_token) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What drafting brought: a round is one verification that decided tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def with_round(self, *, drafted: int, accepted: int) -> "SpeculationStats":
        return SpeculationStats(self.rounds + 1, self.drafted + drafted, self.accepted + accepted)

    @property
    def accepted_per_round(self) -> float:
        return self.accepted / max(1, self.rounds)


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of a request's n sequences."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for the model's own end or a length."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    speculation: SpeculationStats = field(default_factory=SpeculationStats, compare=False)
    """Not part of equality: the same tokens may take more or fewer rounds."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None
    """One entry for each prompt token; the first has none."""
    outputs: tuple[CompletionOutput, ...]
    seed: int
    """The seed that was used, the caller's or the one drawn: with it the request can be repeated."""
    num_cached_tokens: int
    """Prompt tokens whose keys and values were found in the prefix cache."""
    num_preemptions: int
    """How often a sequence of the request gave way and was computed again."""
    timings: Timings


@dataclass(frozen=True, slots=True)
class Increment:
    """What one step added to one sequence. Texts joined in order are the output's text."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
