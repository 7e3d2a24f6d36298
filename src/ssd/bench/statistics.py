"""Medians and ratios with intervals that hold at least as often as they say, however few values there are.

Knows numbers. An interval of a median is two of the values themselves: a true median lies below the least of
n values with chance 2⁻ⁿ whatever their distribution, and so on inwards (order statistics). Ratios are taken
within a prompt, so that drift of the machine cancels.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

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
        return self.spelled("{:.2f}".format)

    def spelled(self, number: Callable[[float], str]) -> str:
        if self.interval is None:
            return number(self.value)
        return f"{number(self.value)} ({'–'.join(map(number, self.interval))})"

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def verdict(self) -> Verdict:
        """Of a ratio of speeds."""
        if self.interval is None:
            return "too few prompts to tell"
        low, high = self.interval
        return "faster" if low > 1 else "slower" if high < 1 else "no difference that the noise allows"


def median_with_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """The interval is the narrowest, with as many values left out at either end, that holds as often."""
    ordered, left_out = sorted(values), _left_out(len(values), confidence)
    middle = statistics.median(ordered)
    if left_out is None:
        return Estimate(value=middle, count=len(ordered))
    return Estimate(value=middle, low=ordered[left_out], high=ordered[-1 - left_out], count=len(ordered))


def _left_out(count: int, confidence: float) -> int | None:
    """How many values at either end; None where even all of them may miss the median too often.

    Fewer than i of n values lie below the median as often as fewer than i of n coins fall heads.
    """
    left_out: int | None = None
    tail = 0
    for place in range(count // 2):
        tail += comb(count, place)
        if tail / 2**count > (1 - confidence) / 2:
            break
        left_out = place
    return left_out


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, confidence: float = CONFIDENCE
) -> Estimate:
    """Of two rows of values that belong together pair by pair."""
    return median_with_interval([a / b for a, b in zip(above, below, strict=True)], confidence=confidence)


def joint_confidence(num_intervals: int) -> float:
    """So that all of them together hold as often as one alone would (Bonferroni): of twenty at 95 %, one
    would err by chance."""
    return 1 - (1 - CONFIDENCE) / max(1, num_intervals)
