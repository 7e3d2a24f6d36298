"""What a chat needs of whoever answers: an engine in this process, or a server elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ssd.config import Mode

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of an answer as it comes."""

    text: str
    origin: str | None = None
    """Where its tokens came from, where that is known: hit, backup or target."""
    num_tokens: int = 0
    is_thought: bool = False
    """Reasoning that a server keeps apart from the answer: shown, but no part of the conversation."""


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """What an answer took, as far as whoever made it says so."""

    num_tokens: int | None = None
    accepted_per_round: float | None = None
    hit_rate: float | None = None


class Backend(Protocol):
    @property
    def title(self) -> str:
        """Who answers, for people."""
        ...

    def answer(self, messages: list[Message]) -> Iterator[Piece]:
        """The next message of the assistant. Ctrl-C ends it as KeyboardInterrupt, and only it."""
        ...

    @property
    def usage(self) -> AnswerStats:
        """Of the latest answer."""
        ...

    def switch_mode(self, mode: Mode, draft: str | None) -> None:
        """ValueError, and nothing changes, where it cannot be done."""
        ...

    def close(self) -> None: ...
