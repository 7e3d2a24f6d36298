"""Whether a draft earns its keep: one that is never right costs bandwidth even on cores of its own.

A draft whose tokens are hardly ever accepted rests: nothing is told to it for a while, and it computes
nothing. Then it gets another trial; each rest that follows a failed trial is twice as long. Knows counts.
"""

_HOPE = 0.3
"""Accepted tokens a round that a trial starts with."""
_LEAST = 0.06
"""Accepted tokens a round below which a draft rests."""
_GOOD = 0.5
"""Accepted tokens a round from which earlier rests are forgotten."""
_WEIGHT = 0.08
"""Of the newest round: a trial without any success takes twenty rounds."""
_FIRST_REST, _LONGEST_REST = 256, 8192
"""Steps."""


class Worth:
    def __init__(self) -> None:
        self._accepted = _HOPE
        self._num_steps_left = 0
        self._rest = _FIRST_REST

    @property
    def is_resting(self) -> bool:
        return self._num_steps_left > 0

    def note_step(self) -> None:
        """A step of the engine, while the draft rests or not."""
        self._num_steps_left = max(0, self._num_steps_left - 1)

    def note_round(self, num_accepted: int) -> None:
        """A sequence was verified of which the draft had spoken; so many of its tokens were accepted."""
        if self.is_resting:
            return
        self._accepted += _WEIGHT * (num_accepted - self._accepted)
        if self._accepted > _GOOD:
            self._rest = _FIRST_REST
        elif self._accepted < _LEAST:
            self._num_steps_left, self._accepted = self._rest, _HOPE
            self._rest = min(2 * self._rest, _LONGEST_REST)
