"""How much speculation a step carries: never more than pays, by the times and chances measured.

A step with r query rows takes T(r); it yields one token for each sequence and, with the chance the
draft gives it, each drafted token. The controller takes drafted tokens in the order of their
chances, over all sequences, up to the number that yields most per second. Where plain decoding is
faster that number is 0. Knows times and chances; no tokens, no draft. Plain numbers throughout: there are a
few of them in each step, and calls of numpy would take longer than the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

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
_HOPE = 0.004
"""How much of its first trust a source of guesses regains with each step in which it is not asked."""
_LEAST_CHANCE = 0.04
"""Below this a drafted token is noise."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: those of no rows, of each row, and what the first drafted token of all adds."""

    fixed: float
    slope: float
    jump: float = 0.0

    def seconds(self, num_rows: int, num_drafted: int = 0) -> float:
        """Of plain rows and drafted ones."""
        return self.fixed + self.slope * (num_rows + num_drafted) + (self.jump if num_drafted else 0.0)


class VerifyTimes:
    """T(r): seconds of a step by its query rows: a line through what was measured, with a jump at its start.

    Machines are noisy and memory-bound forwards nearly flat: a line tells a slope from noise with few steps.
    The jump is for targets on which a second row costs far more than a third.
    """

    def __init__(self) -> None:
        self._level = [0.0] * 4
        """Sums over the latest steps: 1, rows, whether it speculates, seconds."""
        self._products = [[0.0] * 4] * 3
        """Of the same (but for the last) with each of the same, over many more."""

    def note(self, num_rows: int, seconds: float, *, is_speculating: bool) -> None:
        step = (1.0, float(num_rows), float(is_speculating), seconds)
        self._level = [_LEVEL_MEMORY * old + new for old, new in zip(self._level, step, strict=True)]
        self._products = [
            [_SLOPE_MEMORY * old + factor * new for old, new in zip(sums, step, strict=True)]
            for sums, factor in zip(self._products, step[:3], strict=True)
        ]

    @property
    def is_in_doubt(self) -> bool:
        """Steps were too much alike to tell what a row costs, or what it costs to speculate at all."""
        (rows, _, _), (_, speculating, _) = self._centred()
        return rows < _ENOUGH or speculating < _ENOUGH_OF_BOTH

    def cost(self) -> StepCost:
        """A time of 1 until something was measured."""
        weight, rows, speculating, seconds = self._level
        if not weight:
            return StepCost(1.0, 0.0)
        slope, jump = self._slopes()
        # Steeper than proportional would give a forward of nothing a negative time.
        steepness = min(1.0, 0.99 * seconds / max(slope * rows + jump * speculating, 1e-30))
        slope, jump = slope * steepness, jump * steepness
        return StepCost((seconds - slope * rows - jump * speculating) / weight, slope, jump)

    def expected(self, num_rows: int) -> float:
        """Of a step that carries no drafted token."""
        return self.cost().seconds(num_rows)

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
        sums, *products = self._products
        total = max(sums[0], 1e-30)
        rows, speculating = (
            [each - mean * other / total for each, other in zip(product[1:], sums[1:], strict=True)]
            for product, mean in zip(products, sums[1:3], strict=True)
        )
        return rows, speculating


class Controller:
    def __init__(self, *, guess_rate: float = 0.3) -> None:
        """`guess_rate`: what guesses without a chance of their own are trusted with before any was seen."""
        self.times = VerifyTimes()
        self._first_rate = 0.7
        """How often the first drafted token is accepted."""
        self._wait = 0.0
        """How long a wait for the draft takes, by the latest ones."""
        self._guess_rate = self._hoped_rate = guess_rate
        """How often a guess is right whose source gives no chances: the text itself, a draft in turns."""
        self._num_doubts = 0

    def choose(self, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """How many drafted tokens of each sequence to verify, `num_rows` being verified anyway."""
        if not chances:
            return []
        offered = [
            (chance, owner) for owner, path in enumerate(chances) for chance in path if chance > _LEAST_CHANCE
        ]
        offered.sort(key=itemgetter(0), reverse=True)
        lengths = [0] * len(chances)
        for _chance, owner in offered[: self._num_worthwhile(offered, len(chances), num_rows)]:
            lengths[owner] += 1
        return self._now_and_then(lengths) if self.times.is_in_doubt else lengths

    def _num_worthwhile(self, offered: Sequence[tuple[float, int]], num_sequences: int, num_rows: int) -> int:
        """How many of the tokens, the likeliest first, yield most per second."""
        cost = self.times.cost()
        yielded = float(num_sequences)
        plain, best, found = yielded / cost.seconds(num_rows), 0.0, 0
        for count, (chance, _owner) in enumerate(offered, start=1):
            yielded += chance
            rate = yielded / cost.seconds(num_rows, count)
            if rate < best:
                # Each further one is less likely and costs as much.
                break
            if rate > best:
                best, found = rate, count
        return found if best > plain else 0

    def _now_and_then(self, lengths: list[int]) -> list[int]:
        """One time in four nothing is carried: what always is would never be seen to be dear."""
        self._num_doubts += 1
        return [0] * len(lengths) if self._num_doubts % 4 == 0 else lengths

    def guess_chances(self, count: int) -> list[float]:
        """Of guesses in a row whose source gives no chances."""
        return [self._guess_rate ** (place + 1) for place in range(count)]

    def note_guess(self, *, accepted: bool) -> None:
        self._guess_rate += 0.05 * (float(accepted) - self._guess_rate)

    def note_no_guess(self) -> None:
        """What is not tried is not measured: in time it is hoped for again."""
        self._guess_rate += _HOPE * (self._hoped_rate - self._guess_rate)

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
