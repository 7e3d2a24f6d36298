"""The interface between the chat and its backend: an engine in this process, or a server."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ssd.config import Mode

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a streamed answer."""

    text: str
    origin: str | None = None
    """Origin of its tokens: hit, backup or target; None: unknown."""
    num_tokens: int = 0
    is_thought: bool = False
    """Reasoning, which is shown but is not added to the conversation."""


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """Statistics of an answer, as far as the backend provides them."""

    num_tokens: int | None = None
    accepted_per_round: float | None = None
    hit_rate: float | None = None


class Backend(Protocol):
    @property
    def title(self) -> str:
        """Description of the backend, for the user."""
        ...

    def answer(self, messages: list[Message]) -> Iterator[Piece]:
        """Stream the assistant's next message. Ctrl-C raises KeyboardInterrupt and ends only this answer."""
        ...

    @property
    def usage(self) -> AnswerStats:
        """Statistics of the latest answer."""
        ...

    def switch_mode(self, mode: Mode, draft: str | None) -> None:
        """Change the mode. Raises ValueError and changes nothing if that is not possible."""
        ...

    def close(self) -> None: ...
