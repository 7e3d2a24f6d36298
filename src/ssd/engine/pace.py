"""How much of prompts a step reads, by what the steps before have taken.

Whoever streams waits for a step, and so does whoever comes new: on a slow machine a chunk of thousands of
tokens is many seconds to them. Knows tokens and seconds only.
"""

STEP_SECONDS = 0.5
"""What a step should take at most, where prompts are to blame."""
_FIRST = 256
_LEAST = 128
"""Fewer tokens at a time would take longer for each."""


class Pace:
    """A budget that is halved and doubled, so that small differences in time do not change it."""

    def __init__(self, most: int, seconds: float = STEP_SECONDS) -> None:
        self._most, self._seconds = most, seconds
        self.budget = min(_FIRST, most)
        """Prompt tokens for the next step."""

    def note(self, num_prompt_tokens: int, seconds: float) -> None:
        """What a step has read, and how long it took."""
        if not num_prompt_tokens:
            return
        if seconds > self._seconds:
            self.budget = max(min(_LEAST, self._most), self.budget // 2)
        elif num_prompt_tokens >= self.budget and seconds < self._seconds / 3:
            self.budget = min(self._most, self.budget * 2)
