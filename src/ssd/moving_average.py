"""Exponential moving averages: of the latest values, the newest counts most. Knows numbers."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, NDArray[np.float64])


def moved_towards(average: Numbers, value: Numbers, weight: float) -> Numbers:
    """The average after one more value, which counts with this weight (0 to 1)."""
    return average + weight * (value - average)


class MovingAverage:
    def __init__(self, weight: float, start: float | None = None) -> None:
        """`start`: the average before the first value; None: 0, and the first value counts fully."""
        self._weight = weight
        self._has_start = start is not None
        self.value = start if start is not None else 0.0

    def note(self, *values: float) -> None:
        """One or several, in their order."""
        average, weight = self.value, self._weight
        for value in values:
            average = average + weight * (value - average) if average or self._has_start else value
        self.value = average
