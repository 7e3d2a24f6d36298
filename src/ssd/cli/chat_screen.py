"""The chat's terminal: reads lines with editing and history, and prints answers as they are streamed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ssd.cli.chat_backend import AnswerStats, Piece
from ssd.cli.explain import STYLES
from ssd.processes.terminal import escaped

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession


class Screen:
    def __init__(self, *, metrics: bool, color_origins: bool) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._metrics, self._color_origins = metrics, color_origins
        self._session: PromptSession[str] | None = None

    def read(self, commands: list[str]) -> str | None:
        """The line that the user typed; None at the end of the input."""
        if not sys.stdin.isatty():
            return sys.stdin.readline() or None
        self._session = self._session or _session(commands)
        while True:
            try:
                return self._session.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                self.note("Ctrl-D or /quit ends the chat")

    def answer(self, pieces: Iterator[Piece], usage: Callable[[], AnswerStats]) -> str:
        """Print an answer until it ends or the user presses Ctrl-C. Returns the printed text."""
        shown, clock = [], _Clock()
        with suppress(KeyboardInterrupt):
            for piece in pieces:
                clock.note(piece.num_tokens)
                self._console.print(Text(escaped(piece.text), self._style(piece)), end="")
                if not piece.is_thought:
                    shown.append(piece.text)
        self._console.print()
        if self._metrics:
            self.note(clock.line(usage()))
        return "".join(shown)

    def note(self, text: str) -> None:
        self._console.print(Text(escaped(text)), style="dim")

    def error(self, text: str) -> None:
        self._console.print(Text(escaped(text)), style="red")

    def _style(self, piece: Piece) -> str:
        if piece.is_thought:
            return "dim"
        return STYLES.get(piece.origin or "", "") if self._color_origins else ""


class _Clock:
    """Measures the speed of an answer as the user sees it."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first = self._last = self._started
        self._num_tokens = self._num_at_first = 0

    def note(self, num_tokens: int) -> None:
        self._last = time.perf_counter()
        if not self._num_tokens:
            self._first, self._num_at_first = self._last, num_tokens
        self._num_tokens += num_tokens

    def line(self, usage: AnswerStats) -> str:
        count = self._num_tokens if usage.num_tokens is None else usage.num_tokens
        parts = [f"{count} tokens"]
        later, seconds = count - self._num_at_first, self._last - self._first
        if later > 0 and seconds > 0:
            parts.append(f"{later / seconds:.1f} tok/s")
        parts.append(f"first after {self._first - self._started:.2f} s")
        if usage.hit_rate is not None:
            parts.append(f"hits {usage.hit_rate:.0%}")
        if usage.accepted_per_round is not None:
            parts.append(f"{usage.accepted_per_round:.2f} accepted a round")
        return f"[{', '.join(parts)}]"


def _session(commands: list[str]) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    completer = WordCompleter(commands, sentence=True)
    return PromptSession(completer=completer, complete_while_typing=False, key_bindings=keys)
