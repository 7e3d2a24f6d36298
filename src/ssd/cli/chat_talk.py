"""The chat: its terminal, its loop with the history and commands that begin with a slash, and its backend.

A Backend answers: an engine in this process (chat_local.py) or a server (chat_remote.py).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

from rich.console import Console
from rich.text import Text

from ssd.cli.explain import STYLES, legend
from ssd.cli.progress import READING, after_wait
from ssd.config import Mode
from ssd.processes.terminal import escaped

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

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
    """Answers: an engine in this process, or a server."""

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


class Screen:
    """Reads lines with editing and history, and prints answers as they are streamed."""

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
            for piece in after_wait(pieces, READING):
                clock.note(piece.num_tokens)
                self._console.print(Text(escaped(piece.text), self._style(piece)), end="")
                if not piece.is_thought:
                    shown.append(piece.text)
        self._console.print()
        if self._metrics:
            self.note(clock.line(usage()))
        return "".join(shown)

    def explain_colours(self) -> None:
        """Say what the colours of tokens mean, if they are shown."""
        if self._color_origins:
            self._console.print(legend())

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


COMMANDS = {
    "/help": "list the commands",
    "/reset": "forget the conversation",
    "/system": "TEXT: set the system message; without TEXT: remove it",
    "/save": "FILE: write the conversation as JSON",
    "/mode": "ar|sd|ssd [DRAFT]: change the decoding mode",
    "/quit": "end (so does Ctrl-D)",
}


class ChatHistory:
    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self._turns]

    def add(self, question: str, answer: str) -> None:
        self._turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        self._turns = []

    def save(self, path: Path) -> None:
        try:
            with path.open("x") as file:
                json.dump(self.messages, file, ensure_ascii=False, indent=2)
        except FileExistsError as error:
            raise ValueError(f"{path} exists: choose another name") from error
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error


class Chat:
    def __init__(self, backend: Backend, screen: Screen, conversation: ChatHistory) -> None:
        self._backend, self._screen, self._conversation = backend, screen, conversation

    def run(self) -> None:
        """Read and answer lines until /quit or the end of the input."""
        self._screen.note(f"{self._backend.title}. /help lists commands, Ctrl-D ends.")
        self._screen.explain_colours()
        while (line := self._screen.read(list(COMMANDS))) is not None:
            text = line.strip()
            if text == "/quit":
                return
            try:
                if text.startswith("/"):
                    self._command(*text.split(maxsplit=1))
                elif text:
                    self._answer(text)
            except ValueError as error:
                self._screen.error(str(error))

    def _answer(self, question: str) -> None:
        messages = [*self._conversation.messages, {"role": "user", "content": question}]
        shown = self._screen.answer(self._backend.answer(messages), lambda: self._backend.usage)
        # An interrupted answer is part of the conversation; an empty one is not.
        if shown:
            self._conversation.add(question, shown)

    def _command(self, name: str, rest: str = "") -> None:
        actions: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/reset": self._reset,
            "/system": self._system,
            "/save": self._save,
            "/mode": self._mode,
        }
        if name not in actions:
            raise ValueError(f"{name} is no command; there are {', '.join(COMMANDS)}")
        actions[name](rest)

    def _help(self, _: str) -> None:
        for name, meaning in COMMANDS.items():
            self._screen.note(f"{name:8} {meaning}")
        self._screen.note("Alt-Enter begins a new line; Ctrl-C ends an answer.")

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._screen.note("the conversation is reset")

    def _system(self, text: str) -> None:
        self._conversation.system = text
        self._screen.note("noted" if text else "no system message")

    def _save(self, name: str) -> None:
        if not name:
            raise ValueError("/save FILE: name a file")
        self._conversation.save(Path(name).expanduser())
        self._screen.note(f"saved as {name}")

    def _mode(self, text: str) -> None:
        mode, _, draft = text.partition(" ")
        if mode not in get_args(Mode):
            raise ValueError(f"/mode {' or '.join(get_args(Mode))}; now: {self._backend.title}")
        try:
            self._backend.switch_mode(mode, draft.strip() or None)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            raise ValueError("the mode stays as it was") from None
        self._screen.note(self._backend.title)
