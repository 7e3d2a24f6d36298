"""Limits the prompt tokens and the further sequences of a step, by the duration of earlier steps.

All streams and new requests wait for a step to end. On a slow machine a chunk of thousands of prompt tokens
takes many seconds, and so do sixteen sequences of one caller. Knows numbers and seconds only.
"""

from dataclasses import dataclass

STEP_SECONDS = 0.5
"""The longest that a step should take because of prompts or further sequences."""


@dataclass(slots=True)
class _Share:
    """A limit that is halved or doubled, so that small differences in duration do not change it."""

    value: int
    least: int
    most: int

    def note(self, used: int, seconds: float, limit: float) -> None:
        if used and seconds > limit:
            self.value = max(self.least, self.value // 2)
        elif used >= self.value and seconds < limit / 3:
            self.value = min(self.most, self.value * 2)


class PrefillBudget:
    def __init__(self, most_tokens: int, most_further: int, seconds: float = STEP_SECONDS) -> None:
        self._seconds = seconds
        # Where few rows take that long, time grows with rows, so small chunks cost no extra time in total.
        self._prompts = _Share(min(256, most_tokens), min(32, most_tokens), most_tokens)
        self._further = _Share(min(8, most_further), 1, most_further)

    @property
    def num_prompt_tokens(self) -> int:
        """Limit of prompt tokens for the next step."""
        return self._prompts.value

    @property
    def num_further(self) -> int:
        """Limit of rows of the next step beyond the first of each group."""
        return self._further.value

    def note(self, num_prompt_tokens: int, num_further: int, seconds: float) -> None:
        """Adapts the limits to a step's prompt tokens, further rows and duration."""
        self._prompts.note(num_prompt_tokens, seconds, self._seconds)
        self._further.note(num_further, seconds, self._seconds)
