"""What callers receive: increments while a request runs, one output when it ends.

Plain values; they know nothing of how they came about.
"""

from dataclasses import dataclass, field
from typing import Literal

from ssd.decoding.rows import VerifiedTree as VerifiedTree
from ssd.draft.client.pool import PoolStats
from ssd.draft.client.speculator import Round
from ssd.sampling import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]
"""`error`: the text cannot keep to its grammar, `stop_reason` says why; it is no answer."""
Origin = Literal["hit", "backup", "target"]
"""Accepted from a speculation that was ready, accepted from one made after a miss, or the target's own."""

MOST_KEPT_TREES = 256


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


@dataclass(slots=True)
class SpeculationStats:
    """What drafting brought, of one sequence or in total. A round is one verification that decided tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    hits: int = 0
    """Rounds whose first token and what may follow it were known when the round before ended."""
    late: int = 0
    """Misses: the draft was behind: it had not said yet what may follow."""
    unknown: int = 0
    """Misses: the draft had said what may follow, and the token was not among it."""
    unheard: int = 0
    """Misses: no draft had anything to say (it reads the prompt, declined, or is away)."""
    ngram: int = 0
    """Of the rounds, those whose speculation was guessed from the text: a backup."""
    jit: int = 0
    """Of the misses, those for which the draft's tokens came in time after all: the other backup."""
    trees: int = 0
    """Of the rounds, those that verified more than one path."""

    def note(self, *, drafted: int, accepted: int, how: Round | None, is_tree: bool = False) -> None:
        self.rounds += 1
        self.trees += is_tree
        self.drafted += drafted
        self.accepted += accepted
        if how is None:
            return
        self.hits += how.cause == "hit"
        self.late += how.cause == "late"
        self.unknown += how.cause == "unknown"
        self.unheard += how.cause == "unheard"
        self.ngram += how.source == "ngram"
        self.jit += how.source == "draft" and how.cause in ("late", "unknown")

    @property
    def accepted_per_round(self) -> float:
        return self.accepted / max(1, self.rounds)

    @property
    def hit_rate(self) -> float | None:
        """Of the rounds that could have been foreseen; None where there were none."""
        foreseeable = self.hits + self.late + self.unknown + self.unheard
        return self.hits / foreseeable if foreseeable else None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine has done since it started."""

    speculation: SpeculationStats
    num_steps: int
    step_seconds: float
    verify_seconds: float
    wait_seconds: float
    draft: PoolStats | None
    """The line to the draft, in mode `ssd`."""
    lengths: dict[int, int] = field(default_factory=dict)
    """How many rounds verified so many drafted tokens; those without a draft are under 0."""
    num_uncaptured: int = 0
    """Steps of the target that no captured step held, where steps are captured."""

    @property
    def num_drafts(self) -> int:
        """Rounds that had a draft."""
        return sum(count for length, count in self.lengths.items() if length)

    @property
    def host_seconds(self) -> float:
        """Of the steps, what was neither verifying nor waiting."""
        return self.step_seconds - self.verify_seconds - self.wait_seconds


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of a request's n sequences."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it, or an error's reason; None for the model's own end."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    speculation: SpeculationStats = field(default_factory=SpeculationStats, compare=False)
    """Not part of equality: the same tokens may take more or fewer rounds."""
    origins: tuple[Origin, ...] = field(default=(), compare=False)
    """Of each token, where it came from."""
    trees: tuple[VerifiedTree, ...] = field(default=(), compare=False)
    """The latest that were verified, `MOST_KEPT_TREES` of them."""


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
    origins: tuple[Origin, ...] = ()
    """Of each token, where it came from."""
    trees: tuple[VerifiedTree, ...] = ()
    """What was verified for these tokens, where that had several paths."""
