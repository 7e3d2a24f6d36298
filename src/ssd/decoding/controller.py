"""How much speculation a step carries: never more than pays, by the times and chances measured.

A step with r query rows takes T(r); it yields one token for each sequence and, with the chance the
draft gives it, each drafted token. The controller takes drafted tokens in the order of their
chances, over all sequences, up to the number that yields most per second. Where plain decoding is
faster that number is 0. Knows times and chances; no tokens, no draft.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

_SMOOTHING = 0.25
"""Weight of the newest wait."""
_FORGETTING = 0.97
"""What a long wait still counts after each time it was not repeated."""
_MEMORY = 0.98
"""What a step's time still counts for one step later."""
_DOUBT = 8.0
"""Rows squared: until row counts have varied more than this, time is taken not to depend on them."""
_LEAST_CHANCE = 0.04
"""Below this a drafted token is noise."""


class VerifyTimes:
    """T(r): seconds of a step by its number of query rows, a line through what was measured lately.

    Machines are noisy and memory-bound forwards nearly flat: a line tells a slope from noise with few steps.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._rows_squared = self._seconds = self._product = 0.0

    def note(self, num_rows: int, seconds: float) -> None:
        self._weight = _MEMORY * self._weight + 1
        self._rows = _MEMORY * self._rows + num_rows
        self._rows_squared = _MEMORY * self._rows_squared + num_rows**2
        self._seconds = _MEMORY * self._seconds + seconds
        self._product = _MEMORY * self._product + num_rows * seconds

    def line(self) -> tuple[float, float]:
        """Seconds of no rows and of each row; a time of 1 until something was measured."""
        if not self._weight:
            return 1.0, 0.0
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._rows_squared / self._weight - rows**2
        covariance = self._product / self._weight - rows * seconds
        slope = max(0.0, covariance / (variance + _DOUBT))
        # A slope steeper than proportional would give a forward of nothing a negative time.
        slope = min(slope, 0.99 * seconds / rows)
        return seconds - slope * rows, slope

    def expected(self, num_rows: int) -> float:
        fixed, slope = self.line()
        return fixed + slope * num_rows


class Controller:
    def __init__(self) -> None:
        self.times = VerifyTimes()
        self._first_rate = 0.7
        """How often the first drafted token is accepted."""
        self._wait = 0.0
        """How long a wait for the draft takes, by the latest ones."""
        self.ngram_rate = 0.3
        """How often a guess from the text is right."""

    def choose(self, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """How many drafted tokens of each sequence to verify, `num_rows` being verified anyway."""
        if not chances:
            return []
        offered = np.fromiter(chain.from_iterable(chances), dtype=np.float64)
        owners = np.repeat(np.arange(len(chances)), [len(each) for each in chances])
        worth = offered > _LEAST_CHANCE
        offered, owners = offered[worth], owners[worth]
        best_first = np.argsort(-offered, kind="stable")
        fixed, slope = self.times.line()
        yielded = len(chances) + np.concatenate(([0.0], np.cumsum(offered[best_first])))
        rates = yielded / (fixed + slope * (num_rows + np.arange(len(yielded))))
        taken = owners[best_first[: int(np.argmax(rates))]]
        lengths: list[int] = np.bincount(taken, minlength=len(chances)).tolist()
        return lengths

    def note_ngram(self, *, accepted: bool) -> None:
        self.ngram_rate += 0.05 * (float(accepted) - self.ngram_rate)

    def note_first(self, *, accepted: bool) -> None:
        self._first_rate += 0.05 * (float(accepted) - self._first_rate)

    def note_wait(self, seconds: float) -> None:
        self._wait = seconds if not self._wait else self._wait + _SMOOTHING * (seconds - self._wait)

    def longest_wait(self, num_rows: int, draft_step: float) -> float:
        """Seconds worth waiting for a drafted token: less than what it saves. 0: do not wait."""
        gain = self._first_rate * self.times.expected(num_rows)
        expected = self._wait or 1.5 * draft_step
        if 0 < expected < gain:
            return gain
        # What is not tried is not measured: in time it is worth another try.
        self._wait *= _FORGETTING
        return 0.0
