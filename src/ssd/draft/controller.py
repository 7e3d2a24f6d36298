"""How much speculation a step carries: never more than pays, by the times and chances measured.

A step with r query rows takes T(r); it yields one token for each sequence and, with the chance the
draft gives it, each drafted token. The controller takes drafted tokens in the order of their
chances, over all sequences, up to the number that yields most per second. Where plain decoding is
faster that number is 0. Knows times and chances; no tokens, no draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_SMOOTHING = 0.25
"""Weight of the newest wait."""
_FORGETTING = 0.97
"""What a long wait still counts after each time it was not repeated."""
_LEVEL_MEMORY, _SLOPE_MEMORY = 0.98, 0.998
"""What a step's time still counts for one step later: how long steps take changes with the texts and with
what else the machine does, what a row adds hardly ever."""
_DOUBT = 8.0
"""Rows squared: until row counts have varied more than this in sum, time is taken not to depend on them."""
_JUMP_DOUBT = 0.5
"""Steps: as many with speculation and without must have shown what the first drafted token adds."""
_ENOUGH = 64.0
"""The same, until which they are made to vary."""
_ENOUGH_OF_BOTH = 1.0
"""Steps with and without speculation, likewise: more than one of the rarer kind, and never long ago."""
_LEAST_CHANCE = 0.04
"""Below this a drafted token is noise."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: those of no rows, of each row, and what the first drafted token of all adds."""

    fixed: float
    slope: float
    jump: float = 0.0

    def seconds(self, num_rows: int, num_drafted: "Counts | int" = 0) -> "Floats":
        """Of plain rows and drafted ones."""
        drafted = np.asarray(num_drafted)
        return self.fixed + self.slope * (num_rows + drafted) + self.jump * (drafted > 0)


class VerifyTimes:
    """T(r): seconds of a step by its query rows: a line through what was measured, with a jump at its start.

    Machines are noisy and memory-bound forwards nearly flat: a line tells a slope from noise with few steps.
    The jump is for targets on which a second row costs far more than a third.
    """

    def __init__(self) -> None:
        self._level = np.zeros(4)
        """Sums over the latest steps: 1, rows, whether it speculates, seconds."""
        self._products = np.zeros((4, 4))
        """Of the same with each other, over many more."""

    def note(self, num_rows: int, seconds: float, *, is_speculating: bool) -> None:
        step = np.array([1.0, num_rows, is_speculating, seconds])
        self._level = _LEVEL_MEMORY * self._level + step
        self._products = _SLOPE_MEMORY * self._products + np.outer(step, step)

    @property
    def is_in_doubt(self) -> bool:
        """Steps were too much alike to tell what a row costs, or what it costs to speculate at all."""
        (rows, _, _), (_, speculating, _) = self._centred()
        return rows < _ENOUGH or speculating < _ENOUGH_OF_BOTH

    def cost(self) -> StepCost:
        """A time of 1 until something was measured."""
        weight, rows, speculating, seconds = self._level.tolist()
        if not weight:
            return StepCost(1.0, 0.0)
        slope, jump = self._slopes()
        # Steeper than proportional would give a forward of nothing a negative time.
        steepness = min(1.0, 0.99 * seconds / max(slope * rows + jump * speculating, 1e-30))
        slope, jump = slope * steepness, jump * steepness
        return StepCost((seconds - slope * rows - jump * speculating) / weight, slope, jump)

    def expected(self, num_rows: int) -> float:
        """Of a step that carries no drafted token."""
        return float(self.cost().seconds(num_rows))

    def _slopes(self) -> tuple[float, float]:
        """What a row adds, and what speculating does: least squares that doubt both without evidence."""
        (rows, mixed, by_rows), (_, speculating, by_speculating) = self._centred()
        rows, speculating = rows + _DOUBT, speculating + _JUMP_DOUBT
        determinant = rows * speculating - mixed * mixed
        slope = (speculating * by_rows - mixed * by_speculating) / determinant
        jump = (rows * by_speculating - mixed * by_rows) / determinant
        # Nothing gets cheaper: whoever would be negative explains nothing, and the other one all.
        if jump < 0:
            return max(0.0, by_rows / rows), 0.0
        if slope < 0:
            return 0.0, max(0.0, by_speculating / speculating)
        return slope, jump

    def _centred(self) -> tuple[list[float], list[float]]:
        """Of rows and of speculating: sums of products with rows, speculating and seconds, about means."""
        total = max(float(self._products[0, 0]), 1e-30)
        centred = self._products - np.outer(self._products[0], self._products[0]) / total
        rows, speculating = centred[1:3, 1:].tolist()
        return rows, speculating


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
        yielded = len(chances) + np.concatenate(([0.0], np.cumsum(offered[best_first])))
        rates = yielded / self.times.cost().seconds(num_rows, np.arange(len(yielded)))
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
