"""The figures of one case on one data set. Plain values."""

from dataclasses import dataclass

from ssd.bench.cases import Case
from ssd.bench.statistics import Estimate

ALL = "all"
"""Instead of a data set's name: the prompts of all data sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Shares of the time in the engine's steps."""

    verifying: float
    drafting: float
    """In mode sd; a draft that works ahead takes no time of the engine's steps."""
    waiting: float

    @property
    def host(self) -> float:
        return 1 - self.verifying - self.drafting - self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The upper bound of a draft that works ahead, in tokens a second (roof.py): E∞ / T_v and E_d / T_d."""

    plain_seconds: float
    """Seconds of a forward without drafted tokens."""
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
        """At least the rate of plain decoding, which needs no draft."""
        return max(1 / self.plain_seconds, min(self.verify_rate, self.draft_rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    dataset: str
    case: Case
    num_prompts: int
    rate: Estimate
    """Tokens a second of one text after its first token."""
    output_rate: float
    """Tokens a second of all texts that ran together, prompts included in the time."""
    milliseconds_per_token: Estimate
    first_token: Estimate
    """Seconds."""
    accepted_per_round: float
    hit_rate: float | None
    late_rate: float | None
    unknown_rate: float | None
    shares: TimeShares
    rate_per_device: float
    tokens_per_gflop: float
    over_ar: Estimate | None
    """Over plain decoding on the target's own devices."""
    over_wide_ar: Estimate | None
    """Over plain decoding that also uses the draft's cores, if the run has such a case."""
    over_sd: Estimate | None
    """Over the fastest of the run's `sd` cases, on prompts that were not used to choose it."""
    roof: Roof | None
    differing: int
    """Number of texts that differ from plain decoding's (equality.py)."""
    verify_milliseconds: float
    """Duration of a verification without prompt rows, measured during the run."""
    draft_milliseconds: float | None
    """Duration of a step of a draft that works ahead, measured during the run."""
    tokens_per_draft_step: float | None

    @property
    def efficiency(self) -> float | None:
        return None if self.roof is None else self.rate.value / self.roof.rate
