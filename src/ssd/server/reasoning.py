"""Separates `<think>…</think>` at the start of an answer from the answer itself.

Knows the markers that Qwen3 and similar models write. A chat template may open the block in the prompt: then
the answer starts inside it.
"""

from collections.abc import Sequence
from typing import Any

from ssd.config.server import ReasoningFormat
from ssd.server.pieces import Content, Piece, Reasoning, length_held

OPEN, CLOSE = "<think>", "</think>"


def thinks(template: object, wanted: ReasoningFormat) -> bool:
    """Whether answers may contain reasoning that has to be separated."""
    if wanted == "auto":
        return isinstance(template, str) and CLOSE in template
    return wanted == "think"


def starts_inside(tokenizer: Any, prompt: Sequence[int]) -> bool:
    """Whether the prompt ends with an opening marker."""
    tail: str = tokenizer.decode(prompt[-8:], skip_special_tokens=False)
    return tail.rstrip().endswith(OPEN)


class ReasoningSplitter:
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
        if len(start) < len(OPEN) and OPEN.startswith(start):
            return False
        self._may_open = False
        if start.startswith(OPEN):
            self._is_inside, self._held = True, start[len(OPEN) :]
        else:
            self._has_begun = True  # An answer without a block keeps its white space.
        return True

    def _read_inside(self) -> list[Piece]:
        end = self._held.find(CLOSE)
        if end < 0:
            return self._release(Reasoning, len(self._held) - length_held(self._held, CLOSE))
        pieces = self._release(Reasoning, len(self._held[:end].rstrip()))
        self._held = self._held[self._held.find(CLOSE) + len(CLOSE) :]
        self._is_inside = self._has_begun = False
        return pieces

    def _release(self, kind: type[Content | Reasoning], length: int) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        return [kind(text)] if text else []
