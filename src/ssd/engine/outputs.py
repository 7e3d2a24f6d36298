"""What callers receive: increments while a request runs, one output when it ends. Plain values."""

from dataclasses import dataclass, field
from typing import Literal

from ssd.decoding.rows import VerifiedTree as VerifiedTree
from ssd.draft.client.replica import PoolStats
from ssd.draft.client.speculator import Round
from ssd.sampling import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]
"""`error`: the text cannot satisfy its grammar and is no answer; `stop_reason` says why."""
Origin = Literal["hit", "backup", "target"]
"""hit: accepted from a speculation that was ready. backup: accepted from one made after a miss. target: the
target's own token."""

MOST_KEPT_TREES = 256


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in seconds, measured by the engine."""

    queued: float
    """From arrival to the first forward."""
    first_token: float
    """From arrival to the first token."""
    total: float
    num_output_tokens: int
    """Of the request's longest sequence."""

    @property
    def per_output_token(self) -> float | None:
        """Mean time of a token after the first; None if there is none."""
        if self.num_output_tokens < 2:
            return None
        return (self.total - self.first_token) / (self.num_output_tokens - 1)


@dataclass(slots=True)
class SpeculationStats:
    """Results of drafting, for one sequence or in total. A round is one verification that decided tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    hits: int = 0
    """Rounds whose first token, with continuations, was known when the round before ended."""
    late: int = 0
    """Misses: the draft was behind and had not sent continuations yet."""
    unknown: int = 0
    """Misses: the draft had sent continuations, and the token was not among them."""
    unheard: int = 0
    """Misses: no draft took part (it reads the prompt, declined, or is not connected)."""
    ngram: int = 0
    """Rounds whose speculation came from n-grams of the text: a backup."""
    jit: int = 0
    """Misses for which the draft's tokens arrived during a wait: the other backup."""
    trees: int = 0
    """Rounds that verified more than one path."""

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
        """Share of hits among rounds that could have been hits; None if there were none."""
        foreseeable = self.hits + self.late + self.unknown + self.unheard
        return self.hits / foreseeable if foreseeable else None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine started."""

    speculation: SpeculationStats
    num_steps: int
    step_seconds: float
    verify_seconds: float
    wait_seconds: float
    draft: PoolStats | None
    """Of the pool of drafts, in mode `ssd`."""
    lengths: dict[int, int] = field(default_factory=dict)
    """Number of rounds by how many drafted tokens they verified; 0: rounds without a draft."""
    num_uncaptured: int = 0
    """Steps of the target that no captured graph covers, if graphs are used."""

    @property
    def num_drafts(self) -> int:
        """Rounds with drafted tokens."""
        return sum(count for length, count in self.lengths.items() if length)

    @property
    def host_seconds(self) -> float:
        """Time of steps that was neither verification nor waiting for a draft."""
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
    """Of each token, its origin."""
    trees: tuple[VerifiedTree, ...] = field(default=(), compare=False)
    """The latest verified trees, at most `MOST_KEPT_TREES`."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None
    """One entry for each prompt token; the first has none."""
    outputs: tuple[CompletionOutput, ...]
    seed: int
    """The caller's seed, or the one that was drawn; it reproduces the request."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    num_preemptions: int
    """How often a sequence of the request was preempted and computed again."""
    timings: Timings


@dataclass(frozen=True, slots=True)
class Increment:
    """What one step added to one sequence. The texts joined in order are the output's text."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    origins: tuple[Origin, ...] = ()
    """Of each token, its origin."""
    trees: tuple[VerifiedTree, ...] = ()
    """The trees verified for these tokens, if speculations had several paths."""
