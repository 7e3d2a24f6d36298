"""The chat loop: the history of messages, and commands that begin with a slash."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from ssd.cli.chat_backend import Backend, Message
from ssd.cli.chat_screen import Screen
from ssd.config import Mode

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
