"""When a sequence ends, and where its text is cut.

Knows stop strings, stop tokens, the model's end tokens and lengths. Looks at one token at a time,
so an end among several accepted tokens is found at the right token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.engine.outputs import FinishReason
from ssd.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Stop:
    finish_reason: FinishReason
    stop_reason: int | str | None = None


NO_TOKEN_LEFT = Stop(
    "error", "no token is left: the grammar leads nowhere, is too complex, or what it allows is forbidden"
)


def no_token_left(problem: str) -> Stop:
    """The stop of a sequence after which no token is allowed. `problem`: the reason, if known."""
    return Stop("error", problem) if problem else NO_TOKEN_LEFT


class StopText:
    """Finds stop strings across token borders and holds back text that may become one."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""

    def add(self, text: str) -> tuple[str, str | None]:
        """Text that can be released, and the stop string that was completed, if one was."""
        if not self._stops:
            return text, None
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops]
        matches = [(start, stop) for start, stop in found if start >= 0]
        if matches:
            start, stop = min(matches, key=lambda match: match[0])
            return self._held[: start + len(stop) if self._include_stop else start], stop
        released = len(self._held) - self._length_held_back()
        text, self._held = self._held[:released], self._held[released:]
        return text, None

    def pass_by(self, text: str) -> str:
        """Releases the text held back, and `text`, unsearched: before min_tokens, or at the end."""
        text, self._held = self._held + text, ""
        return text

    def _length_held_back(self) -> int:
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


def token_stop(
    token: int, params: SamplingParams, end_ids: Sequence[int], *, num_generated: int, num_remaining: int
) -> Stop | None:
    """The stop that a token causes, regardless of its text. The counts include this token."""
    if num_generated >= params.min_tokens:
        if token in params.stop_token_ids:
            return Stop("stop", token)
        if token in end_ids and not params.ignore_eos:
            return Stop("stop")
    return Stop("length") if num_remaining <= 0 else None
