"""How much to propose: the number of drafted tokens that yields most, and pauses while drafting does not pay.

A step with r query rows takes T(r); it yields one token for each sequence and, with the chance the
draft gives it, each drafted token. `Controller` takes drafted tokens in the order of their
chances, over all sequences, up to the number that yields most per second. Where plain decoding is
faster that number is 0.

Even a draft on its own cores costs memory bandwidth. While hardly any of its tokens is accepted,
`AutoDisable` closes its sessions for a number of steps. Then it gets another trial; each pause that follows a
failed trial is twice as long.

Knows times, chances and counts; no tokens, no draft. Plain numbers throughout: there are a few of them in
each step, and calls of numpy would take longer than the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from ssd.moving_average import MovingAverage, moved_towards

_WAIT_WEIGHT = 0.25
"""Weight of the newest wait for the draft in the moving average."""
_RATE_WEIGHT = 0.05
"""Weight of the newest result, accepted or not, in the moving averages of acceptance."""
_FORGETTING = 0.97
"""Factor by which the longest wait shrinks with each shorter wait."""
_LEVEL_MEMORY, _SLOPE_MEMORY = 0.98, 0.998
"""Factors by which a step's time loses weight with each later step. The time of a step changes with the texts
and with what else the machine does; the time that one more row adds hardly changes."""
_DOUBT = 8.0
"""In rows squared. Until row counts have varied by more than this, time is assumed not to depend on them."""
_JUMP_DOUBT = 0.5
"""In steps. With fewer than this of either kind, with or without speculation, the cost of the first drafted
token is estimated as nearly 0."""
_ENOUGH = 64.0
"""In rows squared. Until row counts have varied by more than this, the controller makes them vary."""
_ENOUGH_OF_BOTH = 1.0
"""In recent steps. The rarer kind (with or without speculation, or trees) is made to occur more than this."""
_HOPE = 0.004
"""Share of the initial acceptance estimate that a source of guesses regains in each step without a guess."""
_LEAST_CHANCE = 0.04
"""A drafted token less likely than this is not proposed."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: those of no rows, of each row, and what the first drafted token of all adds, and
    the first that does not follow the one before it."""

    fixed: float
    slope: float
    jump: float = 0.0
    branching: float = 0.0

    def seconds(self, num_rows: int, num_drafted: int = 0, *, has_trees: bool = False) -> float:
        """Of plain rows and drafted ones."""
        plain = self.fixed + self.slope * (num_rows + num_drafted)
        return plain + (self.jump + self.branching * has_trees if num_drafted else 0.0)


class VerifyTimes:
    """T(r): seconds of a step by its query rows: a line through what was measured, with jumps at its start.

    Machines are noisy and memory-bound forwards nearly flat: a line tells a slope from noise with few steps.
    The first jump is for targets on which a second row costs far more than a third; the second for what
    trees cost beside their rows.
    """

    def __init__(self) -> None:
        self._level = [0.0] * 5
        """Sums over the latest steps: 1, rows, whether it speculates, whether it has trees, seconds."""
        self._products = [[0.0] * 5] * 4
        """Of the same (but for the last) with each of the same, over many more."""

    def note(self, num_rows: int, seconds: float, *, is_speculating: bool, has_trees: bool = False) -> None:
        step = (1.0, float(num_rows), float(is_speculating), float(has_trees), seconds)
        self._level = [_LEVEL_MEMORY * old + new for old, new in zip(self._level, step, strict=True)]
        self._products = [
            [_SLOPE_MEMORY * old + factor * new for old, new in zip(sums, step, strict=True)]
            for sums, factor in zip(self._products, step[:-1], strict=True)
        ]

    @property
    def is_in_doubt(self) -> bool:
        """Steps were too much alike to tell what a row costs, or what it costs to speculate at all."""
        rows, speculating, _trees = self._centred()
        return rows[0] < _ENOUGH or speculating[1] < _ENOUGH_OF_BOTH

    @property
    def is_in_doubt_of_trees(self) -> bool:
        """Hardly any step was without them, or with them."""
        return self._centred()[2][2] < _ENOUGH_OF_BOTH

    def cost(self) -> StepCost:
        """A time of 1 until something was measured."""
        weight, *means, seconds = self._level
        if not weight:
            return StepCost(1.0, 0.0)
        slopes = _least_squares(self._centred())
        # Steeper than proportional would give a forward of nothing a negative time.
        explained = sum(slope * mean for slope, mean in zip(slopes, means, strict=True))
        steepness = min(1.0, 0.99 * seconds / max(explained, 1e-30))
        return StepCost((seconds - explained * steepness) / weight, *(slope * steepness for slope in slopes))

    def expected(self, num_rows: int) -> float:
        """Of a step that carries no drafted token."""
        return self.cost().seconds(num_rows)

    def _centred(self) -> list[list[float]]:
        """Of rows, speculating and trees: sums of products with each of them and seconds, about means."""
        sums, *products = self._products
        total = max(sums[0], 1e-30)
        return [
            [each - mean * other / total for each, other in zip(product[1:], sums[1:], strict=True)]
            for product, mean in zip(products, sums[1:-1], strict=True)
        ]


def _least_squares(sums: Sequence[Sequence[float]]) -> list[float]:
    """The time that a row, speculation and a tree each add; 0 where there is no evidence.

    None of them saves time: a negative coefficient is set to 0, and the others are fitted again.
    """
    doubts, kept = (_DOUBT, _JUMP_DOUBT, _JUMP_DOUBT), [0, 1, 2]
    while kept:
        rows = [[sums[i][j] + (doubts[i] if i == j else 0.0) for j in kept] + [sums[i][3]] for i in kept]
        found = _solution(rows)
        if min(found) >= 0:
            return [found[kept.index(i)] if i in kept else 0.0 for i in range(3)]
        kept.remove(max(i for i, value in zip(kept, found, strict=True) if value < 0))
    return [0.0] * 3


def _solution(rows: list[list[float]]) -> list[float]:
    """Of linear equations, each with its right side at the end: their matrix is positive definite."""
    if not rows:
        return []
    (first, *across), *others = rows
    below = [
        [value - row[0] * above / first for value, above in zip(row[1:], across, strict=True)]
        for row in others
    ]
    rest = _solution(below)
    known = sum(factor * value for factor, value in zip(across, rest, strict=False))
    return [(across[-1] - known) / first, *rest]


@dataclass(frozen=True, slots=True)
class _Choice:
    lengths: list[int]
    """Of each sequence, how many of its tokens."""
    rate: float
    """Tokens a second."""


class Controller:
    def __init__(self, *, guess_rate: float = 0.3) -> None:
        """`guess_rate`: what guesses without a chance of their own are trusted with before any was seen."""
        self.times = VerifyTimes()
        self._first_rate = MovingAverage(_RATE_WEIGHT, 0.7)
        """How often the first drafted token is accepted."""
        self._wait = MovingAverage(_WAIT_WEIGHT)
        """Seconds that a wait for the draft takes."""
        self._guess_rate, self._hoped_rate = MovingAverage(_RATE_WEIGHT, guess_rate), guess_rate
        """How often a guess is right whose source gives no chances: the text itself, a draft in turns."""
        self._num_doubts = 0

    def choose(self, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """How many drafted tokens of each sequence to verify, `num_rows` being verified anyway."""
        return self._tried(self._best(chances, num_rows, has_trees=False))

    def choose_form(
        self,
        trees: Sequence[Sequence[float]],
        chains: Sequence[Sequence[float]],
        num_rows: int,
        *,
        spent: float | None = None,
    ) -> tuple[list[int], bool]:
        """The same where sequences offer trees, and whether these, or only the likeliest path of each.

        `spent`: seconds that the step took already, for what is offered; then that is not thrown away.
        """
        best = self._best(trees, num_rows, has_trees=True, spent=spent or 0.0)
        chain = self._best(chains, num_rows, has_trees=False, spent=spent or 0.0)
        has_trees = best.rate > chain.rate and not (self.times.is_in_doubt_of_trees and self._is_turn())
        choice = best if has_trees else chain
        return (self._tried(choice) if spent is None else choice.lengths), has_trees

    def least_chance(self, num_rows: int) -> float:
        """Of a token that may be worth verifying: one below it adds less than its row costs."""
        cost = self.times.cost()
        return max(_LEAST_CHANCE, cost.slope * num_rows / cost.seconds(num_rows))

    def _best(
        self, chances: Sequence[Sequence[float]], num_rows: int, *, has_trees: bool, spent: float = 0.0
    ) -> _Choice:
        """The tokens, the likeliest first, that yield most per second."""
        offered = [
            (chance, owner) for owner, path in enumerate(chances) for chance in path if chance > _LEAST_CHANCE
        ]
        offered.sort(key=itemgetter(0), reverse=True)
        cost, yielded = self.times.cost(), float(len(chances))
        best, found = yielded / (spent + cost.seconds(num_rows)) if chances else 0.0, 0
        # Added up token by token: a call of `seconds` for each would take longer than all the rest.
        seconds, slope = spent + cost.seconds(num_rows, 1, has_trees=has_trees) - cost.slope, cost.slope
        highest = 0.0
        for count, (chance, _owner) in enumerate(offered, start=1):
            yielded += chance
            seconds += slope
            rate = yielded / seconds
            if rate < highest:
                # Each further one is less likely and costs as much.
                break
            highest = rate
            if rate > best:
                best, found = rate, count
        lengths = [0] * len(chances)
        for _chance, owner in offered[:found]:
            lengths[owner] += 1
        return _Choice(lengths, best)

    def _tried(self, choice: _Choice) -> list[int]:
        """Skips speculation occasionally so that its cost can be measured."""
        lengths = choice.lengths
        return [0] * len(lengths) if lengths and self.times.is_in_doubt and self._is_turn() else lengths

    def _is_turn(self) -> bool:
        """One time in four."""
        self._num_doubts += 1
        return self._num_doubts % 4 == 0

    def guess_chances(self, count: int) -> list[float]:
        """Acceptance probabilities of consecutive guesses from a source that gives none."""
        return [self._guess_rate.value ** (place + 1) for place in range(count)]

    def note_guesses(self, accepted: Sequence[bool]) -> None:
        self._guess_rate.note(*accepted)

    def note_no_guess(self) -> None:
        """Without guesses nothing is measured: the estimate slowly returns to its initial value."""
        self._guess_rate.value = moved_towards(self._guess_rate.value, self._hoped_rate, _HOPE)

    def note_firsts(self, accepted: Sequence[bool]) -> None:
        """Whether the first drafted token was accepted, of each sequence that had one."""
        self._first_rate.note(*accepted)

    def note_wait(self, seconds: float) -> None:
        self._wait.note(seconds)

    def longest_wait(self, num_rows: int, draft_step: float) -> float:
        """Seconds worth waiting for a drafted token: less than what it saves. 0: do not wait."""
        gain = self._first_rate.value * self.times.expected(num_rows)
        expected = self._wait.value or 1.5 * draft_step
        if 0 < expected < gain:
            return gain
        # What is not tried is not measured: in time it is worth another try.
        self._wait.value *= _FORGETTING
        return 0.0


_TRIAL_MEAN, _TRIAL_ROUNDS = 0.5, 3
"""A trial starts as if 3 rounds had accepted 0.5 tokens each; without any accepted token it lasts about
twenty rounds."""
_LEAST_ACCEPTED = 0.06
"""Accepted tokens a round below which drafting pauses."""
_GOOD_ACCEPTED = 0.5
"""Accepted tokens a round above which the pause is reset to its first length."""
_LATE_WEIGHT = 0.125
"""Weight of a round for which the draft was late: it may still be prefilling new sessions."""
_MEMORY_ROUNDS = 25
"""Rounds in the mean, at most: a draft that becomes bad is noticed after about this many."""
_FIRST_REST, _LONGEST_REST = 128, 8192
"""Steps. One request may suit no draft (temperature 9, say), so the first pause is short."""


class AutoDisable:
    def __init__(self) -> None:
        self._num_steps_left = 0
        self._rest = _FIRST_REST
        self._accepted: float
        self._num_rounds: float
        self._begin_trial()

    @property
    def is_resting(self) -> bool:
        return self._num_steps_left > 0

    def note_step(self) -> None:
        """A step of the target has ended."""
        self._num_steps_left = max(0, self._num_steps_left - 1)

    def note_round(self, num_accepted: float, *, was_late: bool = False) -> None:
        """A round has ended; `num_accepted` of the draft's tokens were accepted per sequence.

        `was_late`: the draft was late for all sequences.
        """
        if self.is_resting:
            return
        weight = _LATE_WEIGHT if was_late else 1.0
        self._num_rounds = min(self._num_rounds + weight, _MEMORY_ROUNDS)
        self._accepted += (num_accepted - self._accepted) * weight / self._num_rounds
        if self._accepted > _GOOD_ACCEPTED:
            self._rest = _FIRST_REST
        elif self._accepted < _LEAST_ACCEPTED:
            self._num_steps_left = self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._begin_trial()

    def _begin_trial(self) -> None:
        self._accepted, self._num_rounds = _TRIAL_MEAN, _TRIAL_ROUNDS
