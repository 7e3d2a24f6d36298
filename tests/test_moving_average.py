"""Moving averages: where they start, and how the newest value counts."""

import numpy as np
import pytest

from ssd.moving_average import MovingAverage, moved_towards


def test_the_first_value_counts_fully_and_each_further_one_by_its_weight() -> None:
    average = MovingAverage(0.25)
    assert average.value == 0.0
    average.note(1.0)
    assert average.value == 1.0
    average.note(3.0)
    assert average.value == 1.5
    for _ in range(100):
        average.note(3.0)
    assert average.value == pytest.approx(3.0)


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_a_start_counts_as_values_before_the_first(start: float) -> None:
    average = MovingAverage(0.25, start)
    assert average.value == start
    average.note(1.0)
    assert average.value == start + 0.25 * (1.0 - start)


def test_columns_of_averages_move_together() -> None:
    found = moved_towards(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 0.5)
    assert found.tolist() == [0.5, 1.0]
