"""Whether a draft earns its keep: one that is never right costs bandwidth even on cores of its own.

A draft whose tokens are hardly ever accepted rests: nothing is told to it for a while, and it computes
nothing. Then it gets another trial; each rest that follows a failed trial is twice as long. Knows counts.
"""

_HOPE, _HOPE_ROUNDS = 0.5, 3
"""Accepted tokens a round that a trial starts with, as if so many rounds had shown it: without any success
a trial takes some twenty rounds."""
_LEAST = 0.06
"""Accepted tokens a round below which a draft rests."""
_GOOD = 0.5
"""Accepted tokens a round from which earlier rests are forgotten."""
_LATE_WEIGHT = 0.125
"""Of a round for which the draft was late: it may be catching up with texts that it has just been told."""
_MEMORY_ROUNDS = 25
"""How many rounds are remembered at most: a draft that was good for long may be bad for as long as this."""
_FIRST_REST, _LONGEST_REST = 128, 8192
"""Steps. One request may be beyond every draft (at a temperature of 9, say), so the first rest is short."""


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
        """A step of the engine, while the draft rests or not."""
        self._num_steps_left = max(0, self._num_steps_left - 1)

    def note_round(self, num_accepted: float, *, was_late: bool = False) -> None:
        """Sequences were verified of which the draft had spoken; so many of its tokens accepted in each.

        `was_late`: of what follows it had not spoken in time for any of them.
        """
        if self.is_resting:
            return
        weight = _LATE_WEIGHT if was_late else 1.0
        self._num_rounds = min(self._num_rounds + weight, _MEMORY_ROUNDS)
        self._accepted += (num_accepted - self._accepted) * weight / self._num_rounds
        if self._accepted > _GOOD:
            self._rest = _FIRST_REST
        elif self._accepted < _LEAST:
            self._num_steps_left = self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._begin_trial()

    def _begin_trial(self) -> None:
        self._accepted, self._num_rounds = _HOPE, _HOPE_ROUNDS
