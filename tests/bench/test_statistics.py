"""Medians, ratios and intervals against values known otherwise."""

import statistics

import numpy as np
import pytest

from ssd.bench.pages.svg import Axis, number
from ssd.bench.statistics import (
    Estimate,
    joint_confidence,
    mean_of_medians,
    median_with_interval,
    paired_ratio,
)
from ssd.bench.summary import tokens_a_round


def test_a_median_and_its_interval() -> None:
    values = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0]
    found = median_with_interval(values)
    # By counting: the median of 7 draws from 7 values is 1 in 1.02 % of cases, and 1 or 2 in 10.3 %.
    assert (found.value, found.low, found.high, found.count) == (4.0, 2.0, 6.0, 7)
    assert found == median_with_interval(values)


def test_few_values_have_no_interval_that_would_hold() -> None:
    """Five values have the median between them in 1 − 2⁻⁴ of cases, which is less than 95 %."""
    five, six = ([float(each) for each in range(count)] for count in (5, 6))
    assert median_with_interval(five).low is None
    assert median_with_interval(six).low is not None
    assert median_with_interval(six, confidence=joint_confidence(4)).low is None
    assert mean_of_medians([[1.0, 2.0], [3.0, 4.0]]).low is None
    assert mean_of_medians([[1.0, 2.0, 3.0, 4.0]] * 3).low is None
    assert mean_of_medians([[1.0, 2.0, 3.0] * 2] * 3).low is not None


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    trials = [median_with_interval(rng.normal(10, 1, 25).tolist()) for _ in range(200)]
    covered = sum((each.low or 0) <= 10 <= (each.high or 0) for each in trials)
    # 95 % of 200, within four standard deviations (and a percentile interval of a median covers a bit less).
    assert 176 <= covered <= 200
    widths = statistics.mean((each.high or 0) - (each.low or 0) for each in trials)
    # The median of 25 normal values has a standard deviation of 0.25.
    assert widths == pytest.approx(2 * 1.96 * 0.25, rel=0.15)


def test_ratios_are_taken_within_pairs() -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    found = paired_ratio([1.5 * each for each in drift], drift)
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0], [1.0, 2.0])


def test_many_intervals_are_wider() -> None:
    assert joint_confidence(1) == 0.95
    assert joint_confidence(10) == pytest.approx(0.995)
    values = [float(each) for each in range(20)]
    alone, among_many = (median_with_interval(values, confidence=joint_confidence(n)) for n in (1, 50))
    assert (among_many.low or 0) < (alone.low or 0) < alone.value < (alone.high or 0) < (among_many.high or 0)


def test_verdicts() -> None:
    assert Estimate(value=1.2, low=1.01, high=1.3, count=9).verdict == "faster"
    assert Estimate(value=0.8, low=0.7, high=0.99, count=9).verdict == "slower"
    assert Estimate(value=1.2, low=0.99, high=1.5, count=9).verdict == "no difference that the noise allows"
    assert median_with_interval([2.0]).verdict == "too few prompts to tell"
    assert str(median_with_interval([2.0])) == "2.00"


@pytest.mark.parametrize(
    ("agrees", "lookahead", "expected"),
    [
        ([True] * 9, 8, 9.0),
        ([False] * 6, 8, 1.0),
        ([True, True, False, True, False, False], 8, 2.0),
        ([True] * 10, 4, 5.0),
    ],
)
def test_tokens_a_round(agrees: list[bool], lookahead: int, expected: float) -> None:
    assert tokens_a_round(agrees, lookahead) == expected


def test_axes_begin_at_zero_and_end_at_round_numbers() -> None:
    for largest in (0.013, 0.9, 9.7, 10.0, 123.0, 9999.0):
        axis = Axis.over(100, 600, largest)
        assert axis.place(0) == 100
        assert axis.most >= largest
        assert axis.place(axis.most) == 600
        assert 3 <= len(axis.ticks) <= 7
    assert [number(each) for each in (0, 0.01234, 1.234, 12.34, 123.4, 12345.6)] == [
        "0", "0.0123", "1.23", "12.3", "123", "12,346",
    ]  # fmt: skip
