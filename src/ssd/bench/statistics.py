"""Medians and ratios with confidence intervals that are valid for few values, and the order of turns.

Knows numbers. The interval of a median consists of two of the values (order statistics): for any
distribution, the true median is below the smallest of n values with probability 2⁻ⁿ, and so on. Ratios are
taken within a prompt, so that drift of the machine cancels.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, comb, log2
from typing import Literal, TypeVar

_Item = TypeVar("_Item")
CONFIDENCE = 0.95
Verdict = Literal["faster", "slower", "within noise", "too few prompts to tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with its interval; no interval if there were too few values."""

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
        """The verdict of a ratio of speeds."""
        if self.interval is None:
            return "too few prompts to tell"
        low, high = self.interval
        return "faster" if low > 1 else "slower" if high < 1 else "within noise"


def median_with_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """The narrowest symmetric interval of order statistics with this confidence."""
    ordered, left_out = sorted(values), _left_out(len(values), confidence)
    middle = statistics.median(ordered)
    if left_out is None:
        return Estimate(value=middle, count=len(ordered))
    return Estimate(value=middle, low=ordered[left_out], high=ordered[-1 - left_out], count=len(ordered))


def _left_out(count: int, confidence: float) -> int | None:
    """Number of values to leave out at either end; None if even the whole range is not confident enough.

    Fewer than i of n values are below the median with the probability of fewer than i heads in n coin tosses.
    """
    left_out: int | None = None
    tail = 0
    for index in range(count // 2):
        tail += comb(count, index)
        if tail / 2**count > (1 - confidence) / 2:
            break
        left_out = index
    return left_out


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, confidence: float = CONFIDENCE
) -> Estimate:
    """The median ratio of two paired sequences."""
    return median_with_interval([a / b for a, b in zip(above, below, strict=True)], confidence=confidence)


def joint_confidence(num_intervals: int) -> float:
    """The confidence of each interval so that all of them hold together with CONFIDENCE (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(1, num_intervals)


def least_count(confidence: float) -> int:
    """The smallest number of values that give an interval: the true median is outside all n values."""
    return ceil(1 - log2(1 - confidence))


def period(count: int) -> int:
    """Number of turns after which `in_turn` is balanced: `count`, or twice that if `count` is odd."""
    return 1 if count < 2 else count * (1 + count % 2)


def in_turn(items: Sequence[_Item], turn: int) -> list[_Item]:
    """The order of the items in this turn: a Williams design.

    Over `period` turns each item has every place, and follows every other item, equally often. So the
    effects of an item on the next (warm caches, a busy draft, heat) are balanced. The order is 0 1 n−1 2 n−2
    …, shifted by one each turn; for an odd number also reversed.
    """
    count = len(items)
    place = turn % period(count)
    zigzag = [(step + 1) // 2 if step % 2 else (count - step // 2) % count for step in range(count)]
    order = [items[(each + place) % count] for each in zigzag]
    return order[::-1] if place >= count else order
