"""Splits streamed text into content, reasoning and tool calls.

Text arrives in increments of any size: a marker may be split between two, or one may contain several.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ssd.config.server import ReasoningFormat


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
_THINK, _END_THINK = "<think>", "</think>"
"""Markers of reasoning that Qwen3 and similar models write."""


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


def thinks(template: object, wanted: ReasoningFormat) -> bool:
    """Whether answers may contain reasoning that has to be separated."""
    if wanted == "auto":
        return isinstance(template, str) and _END_THINK in template
    return wanted == "think"


def starts_inside(tokenizer: Any, prompt: Sequence[int]) -> bool:
    """Whether the prompt ends with an opening marker."""
    tail: str = tokenizer.decode(prompt[-8:], skip_special_tokens=False)
    return tail.rstrip().endswith(_THINK)


class ReasoningSplitter:
    """Separates `<think>…</think>` at the start of an answer from the answer itself.

    A chat template may open the block in the prompt: then the answer starts inside it.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._held = ""
        self._is_inside = inside
        self._may_open = not inside
        self._has_begun = False
        """Whether the current part (reasoning or content) has had any text but white space."""

    def add(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        if self._may_open and not self._settle_start():
            return []
        if self._is_inside:
            pieces += self._read_inside()
        if not self._is_inside:
            pieces += self._release(Content, len(self._held))
        return pieces

    def finish(self) -> list[Piece]:
        kind = Reasoning if self._is_inside else Content
        return self._release(kind, len(self._held)) if self._held.strip() else []

    def _settle_start(self) -> bool:
        """Decide whether the answer opens a block; False: more text is needed."""
        start = self._held.lstrip()
        if len(start) < len(_THINK) and _THINK.startswith(start):
            return False
        self._may_open = False
        if start.startswith(_THINK):
            self._is_inside, self._held = True, start[len(_THINK) :]
        else:
            self._has_begun = True  # An answer without a block keeps its white space.
        return True

    def _read_inside(self) -> list[Piece]:
        end = self._held.find(_END_THINK)
        if end < 0:
            return self._release(Reasoning, len(self._held) - length_held(self._held, _END_THINK))
        pieces = self._release(Reasoning, len(self._held[:end].rstrip()))
        self._held = self._held[self._held.find(_END_THINK) + len(_END_THINK) :]
        self._is_inside = self._has_begun = False
        return pieces

    def _release(self, kind: type[Content | Reasoning], length: int) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        return [kind(text)] if text else []
