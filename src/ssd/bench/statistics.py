"""Medians and ratios with intervals that know how few prompts there were.

Knows numbers. Intervals are 95 % bootstrap intervals (scipy) over prompts: what would a median be, had other
prompts of the kind been drawn? Ratios are taken within a prompt, so that drift of the machine cancels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy

_RESAMPLES = 5000
CONFIDENCE = 0.95
Verdict = Literal["faster", "slower", "no difference that the noise allows", "too few prompts to tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median, and where it may lie; no interval where there were too few values for one."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"

    @property
    def verdict(self) -> Verdict:
        """Of a ratio of speeds."""
        if self.low is None or self.high is None:
            return "too few prompts to tell"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference that the noise allows"


def median_with_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """The median, and its interval by resampling; always the same for the same values."""

    def median(group: Any, axis: int = -1) -> Any:
        return numpy.median(group, axis=axis)

    return _estimate((values,), median, count=len(values), confidence=confidence)


def mean_of_medians(groups: Sequence[Sequence[float]]) -> Estimate:
    """Each group counts the same, whatever its size; resampled within groups."""

    def mean(*each: Any, axis: int = -1) -> Any:
        return numpy.mean([numpy.median(group, axis=axis) for group in each], axis=0)

    return _estimate(groups, mean, count=sum(map(len, groups)))


def _estimate(
    groups: Sequence[Sequence[float]],
    statistic: Callable[..., Any],
    *,
    count: int,
    confidence: float = CONFIDENCE,
) -> Estimate:
    value = float(statistic(*map(numpy.asarray, groups)))
    if not _can_hold(list(map(len, groups)), confidence):
        return Estimate(value=value, count=count)
    need_scipy()
    from scipy.stats import bootstrap

    interval = bootstrap(
        tuple(map(list, groups)),
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        # Not BCa: the jackknife of a median is degenerate, and all values may be equal.
        method="percentile",
        vectorized=True,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return Estimate(value=value, low=float(interval.low), high=float(interval.high), count=count)


def _can_hold(sizes: Sequence[int], confidence: float) -> bool:
    """Resampled medians stay between the least and the greatest value, and a true median is outside with
    chance 2^(1 − n): six values are the fewest for 95 %, whatever they are."""
    return all(2.0 ** (1 - each) <= 1 - confidence for each in sizes)


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, confidence: float = CONFIDENCE
) -> Estimate:
    """Of two rows of values that belong together pair by pair."""
    return median_with_interval([a / b for a, b in zip(above, below, strict=True)], confidence=confidence)


def joint_confidence(num_intervals: int) -> float:
    """So that all of them together hold as often as one alone would: of twenty, one would err by chance."""
    return 1 - (1 - CONFIDENCE) / max(1, num_intervals)


def need_scipy() -> None:
    """ValueError with a remedy where it is not installed."""
    try:
        import scipy.stats  # noqa: F401
    except ImportError as error:
        raise ValueError("intervals need the package scipy: pip install 'ssd[bench]'") from error
