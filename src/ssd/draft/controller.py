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
_LEVEL_MEMORY, _SLOPE_MEMORY = 0.98, 0.998
"""What a step's time still counts for one step later: how long steps take changes with the texts and with
what else the machine does, what a row adds hardly ever."""
_DOUBT = 8.0
"""Rows squared: until row counts have varied more than this in sum, time is taken not to depend on them."""
_ENOUGH = 64.0
"""The same, until which they are made to vary."""
_LEAST_CHANCE = 0.04
"""Below this a drafted token is noise."""


class VerifyTimes:
    """T(r): seconds of a step by its number of query rows, a line through what was measured.

    Machines are noisy and memory-bound forwards nearly flat: a line tells a slope from noise with few steps.
    """

    def __init__(self) -> None:
        self._level = np.zeros(3)
        """Sums over the latest steps: 1, rows, seconds."""
        self._slope = np.zeros(5)
        """Over many more: 1, rows, seconds, rows², rows × seconds."""

    def note(self, num_rows: int, seconds: float) -> None:
        self._level = _LEVEL_MEMORY * self._level + (1, num_rows, seconds)
        self._slope = _SLOPE_MEMORY * self._slope + (1, num_rows, seconds, num_rows**2, num_rows * seconds)

    @property
    def is_in_doubt(self) -> bool:
        """Row counts were too much alike to tell what a row costs."""
        return self._spread() < _ENOUGH

    def line(self) -> tuple[float, float]:
        """Seconds of no rows and of each row; a time of 1 until something was measured."""
        weight, rows, seconds = self._level.tolist()
        if not weight:
            return 1.0, 0.0
        total, all_rows, all_seconds, _, product = self._slope.tolist()
        slope = max(0.0, (product - all_rows * all_seconds / total) / (self._spread() + _DOUBT))
        # A slope steeper than proportional would give a forward of nothing a negative time.
        slope = min(slope, 0.99 * seconds / rows)
        return (seconds - slope * rows) / weight, slope

    def expected(self, num_rows: int) -> float:
        fixed, slope = self.line()
        return fixed + slope * num_rows

    def _spread(self) -> float:
        """By how much row counts differed from their mean: the sum of the squares."""
        total, rows, _, rows_squared, _ = self._slope.tolist()
        return rows_squared - rows * rows / total if total else 0.0


class Controller:
    def __init__(self) -> None:
        self.times = VerifyTimes()
        self._first_rate = 0.7
        """How often the first drafted token is accepted."""
        self._wait = 0.0
        """How long a wait for the draft takes, by the latest ones."""
        self.ngram_rate = 0.3
        """How often a guess from the text is right."""
        self._num_doubts = 0

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
        return self._now_and_then(lengths) if self.times.is_in_doubt else lengths

    def _now_and_then(self, lengths: list[int]) -> list[int]:
        """One time in four nothing is carried: what always is would never be seen to be dear."""
        self._num_doubts += 1
        return [0] * len(lengths) if self._num_doubts % 4 == 0 else lengths

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
