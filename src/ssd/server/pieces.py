"""Splits streamed text into content, reasoning and tool calls.

Text arrives in increments of any size: a marker may be split between two, or one may contain several.
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
    """A complete tool call."""

    name: str
    arguments: str
    """JSON text."""


Piece = Content | Reasoning | Call


class Splitter(Protocol):
    def add(self, text: str) -> list[Piece]:
        """The pieces that are certain after this text."""
        ...

    def finish(self) -> list[Piece]:
        """The remaining pieces, at the end of the text."""
        ...


class PlainText:
    """Passes all text on as content."""

    def add(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class OneCall:
    """Drops every tool call of another splitter after the first one."""

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
    """Applies the second splitter to the content that the first one finds."""

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
    """Number of characters at the end that may start the marker, with the white space before them."""
    for length in range(min(len(marker) - 1, len(text)), -1, -1):
        if text.endswith(marker[:length]):
            before = text[: len(text) - length]
            return length + len(before) - len(before.rstrip())
    return 0
