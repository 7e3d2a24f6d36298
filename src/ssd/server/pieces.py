"""Pieces of an assistant's text, and what splits a text that grows into them.

Text comes in bursts of any size: a marker may be cut anywhere, or several may come at once.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; always whole."""

    name: str
    arguments: str
    """JSON, as OpenAI has it."""


Piece = Content | Reasoning | Call


class Splitter(Protocol):
    def add(self, text: str) -> list[Piece]:
        """What the new text settles."""
        ...

    def finish(self) -> list[Piece]:
        """What is left at the end."""
        ...


class PlainText:
    """Nothing to split."""

    def add(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class OneCall:
    """At most one call: what another splitter finds after the first is left out."""

    def __init__(self, splitter: Splitter) -> None:
        self._splitter, self._has_called = splitter, False

    def add(self, text: str) -> list[Piece]:
        return self._without_more(self._splitter.add(text))

    def finish(self) -> list[Piece]:
        return self._without_more(self._splitter.finish())

    def _without_more(self, pieces: list[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if not (isinstance(piece, Call) and self._has_called):
                found.append(piece)
            self._has_called = self._has_called or isinstance(piece, Call)
        return found


class Chain:
    """What the first finds to be content, the second looks at."""

    def __init__(self, first: Splitter, second: Splitter) -> None:
        self._first, self._second = first, second

    def add(self, text: str) -> list[Piece]:
        return self._pass_on(self._first.add(text))

    def finish(self) -> list[Piece]:
        return self._pass_on(self._first.finish()) + self._second.finish()

    def _pass_on(self, pieces: list[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            found += self._second.add(piece.text) if isinstance(piece, Content) else [piece]
        return found


def length_held(text: str, marker: str) -> int:
    """How many characters at the end, white space before them included, may yet turn out to be the marker."""
    for length in range(min(len(marker) - 1, len(text)), -1, -1):
        if text.endswith(marker[:length]):
            before = text[: len(text) - length]
            return length + len(before) - len(before.rstrip())
    return 0
