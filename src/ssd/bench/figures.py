"""The figures of one case on one data set: plain values, each with what it means."""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.bench.cases import Case
from ssd.bench.statistics import Estimate

ALL = "all"
"""In place of a data set's name: the prompts of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Of the time in the engine's steps."""

    verifying: float
    drafting: float
    """In turns with the target; a draft that works ahead takes none."""
    waiting: float

    @property
    def host(self) -> float:
        return 1 - self.verifying - self.drafting - self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What bounds a draft that works ahead, in tokens a second (roof.py): E∞ / T_v, and E_d / T_d."""

    plain_seconds: float
    """Of a verification that nothing was drafted for."""
    tokens_a_round: float
    verify_seconds: float
    verify_rows: int
    tokens_a_step: float
    draft_seconds: float
    draft_rows: int

    @property
    def verify_rate(self) -> float:
        return self.tokens_a_round / self.verify_seconds

    @property
    def draft_rate(self) -> float:
        return self.tokens_a_step / self.draft_seconds

    @property
    def rate(self) -> float:
        """Without drafted tokens, the draft's speed does not matter."""
        return max(1 / self.plain_seconds, min(self.verify_rate, self.draft_rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    dataset: str
    case: Case
    num_prompts: int
    rate: Estimate
    """Tokens a second of one text after its first token: what a user sees."""
    output_rate: float
    """Tokens a second of all texts that ran together, prompts included in the time."""
    milliseconds_per_token: Estimate
    first_token: Estimate
    """Seconds."""
    accepted_per_round: float
    hit_rate: float | None
    late_rate: float | None
    unknown_rate: float | None
    depths: Sequence[float]
    """Share of rounds in which at least one, two, three … drafted tokens were accepted."""
    shares: TimeShares
    rate_per_device: float
    tokens_per_gflop: float
    over_ar: Estimate | None
    """Over plain decoding on the target's own devices."""
    over_wide_ar: Estimate | None
    """Over plain decoding that has the draft's cores too, where the run has it."""
    over_sd: Estimate | None
    """Over the fastest of the run's `sd` cases, by prompts that it was not chosen by."""
    roof: Roof | None
    differing: int
    """Texts that are not plain decoding's (equality.py)."""
    verify_milliseconds: float
    """Of a round, prompts apart, as it ran beside everything else."""
    draft_milliseconds: float | None
    """Of a step of a draft that works ahead, likewise."""
    tokens_per_draft_step: float | None

    @property
    def efficiency(self) -> float | None:
        return None if self.roof is None else self.rate.value / self.roof.rate
