"""How much of prompts a step reads, and how many further texts move in it, by what steps have taken.

Whoever streams waits for a step, and so does whoever comes new: on a slow machine a chunk of thousands of
tokens is many seconds to them, and so are sixteen texts of another. Knows numbers and seconds only.
"""

from dataclasses import dataclass

STEP_SECONDS = 0.5
"""What a step should take at most, where prompts or further texts are to blame."""


@dataclass(slots=True)
class _Share:
    """A number that is halved and doubled, so that small differences in time do not change it."""

    value: int
    least: int
    most: int

    def note(self, used: int, seconds: float, limit: float) -> None:
        if used and seconds > limit:
            self.value = max(self.least, self.value // 2)
        elif used >= self.value and seconds < limit / 3:
            self.value = min(self.most, self.value * 2)


class Pace:
    def __init__(self, most_tokens: int, most_further: int, seconds: float = STEP_SECONDS) -> None:
        self._seconds = seconds
        # Where a few rows take so long, each row costs, and a small chunk is not dearer than a large one.
        self._prompts = _Share(min(256, most_tokens), min(32, most_tokens), most_tokens)
        self._further = _Share(min(8, most_further), 1, most_further)

    @property
    def num_prompt_tokens(self) -> int:
        """For the next step."""
        return self._prompts.value

    @property
    def num_further(self) -> int:
        """Rows of the next step beside the first of what each caller asked for."""
        return self._further.value

    def note(self, num_prompt_tokens: int, num_further: int, seconds: float) -> None:
        """What a step has read and moved, and how long it took."""
        self._prompts.note(num_prompt_tokens, seconds, self._seconds)
        self._further.note(num_further, seconds, self._seconds)
