"""Turns drafting off while it does not pay: even a draft on its own cores costs memory bandwidth.

While hardly any of a draft's tokens is accepted, its sessions are closed for a number of steps. Then it gets
another trial; each pause that follows a failed trial is twice as long. Knows only counts.
"""

_HOPE, _HOPE_ROUNDS = 0.5, 3
"""A trial starts as if 3 rounds had accepted 0.5 tokens each; without any accepted token it lasts about
twenty rounds."""
_LEAST = 0.06
"""Accepted tokens a round below which drafting pauses."""
_GOOD = 0.5
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
        if self._accepted > _GOOD:
            self._rest = _FIRST_REST
        elif self._accepted < _LEAST:
            self._num_steps_left = self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._begin_trial()

    def _begin_trial(self) -> None:
        self._accepted, self._num_rounds = _HOPE, _HOPE_ROUNDS
