"""`ssd chat` as a user has it: a real program on a real terminal, with a tiny model."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from typer.testing import CliRunner

from ssd.cli.main import app

# A line editor turns bracketed paste on when it starts to read, and off when the line is complete.
_PROMPT = r"\x1b\[\?2004h[\s\S]*?>[\s\S]*?\x1b\[\?25h"
_TYPED = "\x1b[?2004l"


class Terminal:
    """A chat on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm-256color"}
        self._child = pexpect.spawn(
            sys.executable,
            ["-m", "ssd", "chat", *arguments],
            env=environment,
            encoding="utf-8",
            timeout=60,
            dimensions=(40, 200),
        )

    def wait_for_prompt(self) -> str:
        """What was shown since the last line was typed, without colours."""
        self._child.expect(_PROMPT)
        return plain(str(self._child.before).split(_TYPED)[-1])

    def say(self, text: str) -> str:
        self._child.send(text + "\r")
        return self.wait_for_prompt()

    def send(self, text: str) -> None:
        self._child.send(text)

    def expect(self, pattern: str) -> None:
        self._child.expect(pattern)

    def interrupt(self) -> None:
        self._child.sendintr()

    def end(self, text: str = "/quit\r") -> int:
        self._child.send(text)
        self._child.expect(pexpect.EOF)
        self._child.close()
        return int(self._child.exitstatus)

    def close(self) -> None:
        self._child.close(force=True)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def chat_with(model: Path, *arguments: str) -> Iterator[Terminal]:
    chat = Terminal(str(model), "--draft", str(model), "--ignore-eos", *arguments)
    chat.wait_for_prompt()
    yield chat
    chat.close()


@pytest.fixture(scope="module")
def plain_chat(tiny_llama: Path) -> Iterator[Terminal]:
    """A chat in mode ar. Tests share it, so each begins with /reset."""
    yield from chat_with(tiny_llama, "--mode", "ar", "--max-tokens", "4")


def test_modes_change_live_and_the_answers_do_not(tiny_llama: Path) -> None:
    """Nor does a draft that cannot be had change anything. Tokens have the colours of their origins."""
    terminal = Terminal(
        *(str(tiny_llama), "--draft", str(tiny_llama), "--ignore-eos", "--max-tokens", "12"),
        *("--deterministic", "--metrics", "--color-origins"),
    )
    terminal.expect("loading tiny-llama")
    terminal.expect("starting the draft")
    terminal.wait_for_prompt()

    def answer() -> str:
        terminal.say("/reset")
        return terminal.say("The quick")

    ahead = answer()
    assert "mode ar" in terminal.say("/mode ar")
    alone = answer()
    assert re.search(r"\[12 tokens, [\d.]+ tok/s, first after [\d.]+ s\]", alone)
    assert "no model at" in terminal.say("/mode ssd /nowhere")
    still_alone = answer()
    assert "mode sd" in terminal.say("/mode sd")
    terminal.say("/reset")
    terminal.send("The quick\r")
    terminal.expect("\x1b\\[32m")
    terminal.wait_for_prompt()
    in_turns = answer()
    texts = [text.split("[12 tokens")[0] for text in (alone, still_alone, in_turns, ahead)]
    assert len(set(texts)) == 1, texts
    assert "accepted a round" in in_turns
    assert re.search(r"hits \d+%, [\d.]+ accepted a round", ahead)
    assert "accepted" not in still_alone
    assert terminal.end() == 0
    terminal.close()


def test_lines_can_be_edited_and_called_back(plain_chat: Terminal, tmp_path: Path) -> None:
    plain_chat.say("/reset")
    plain_chat.say("The quack\x7f\x7f\x7fick")
    plain_chat.say("\x1b[A")
    plain_chat.say("two\x1b\rlines")
    plain_chat.say(f"/save {tmp_path / 'talk.json'}")
    asked = [m["content"] for m in json.loads((tmp_path / "talk.json").read_text()) if m["role"] == "user"]
    assert asked == ["The quick", "The quick", "two\nlines"]


def test_commands(plain_chat: Terminal, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    plain_chat.say("/reset")
    plain_chat.say("/system Be brief.")
    plain_chat.say("The quick")
    plain_chat.say("Once")
    assert f"saved as {saved}" in plain_chat.say(f"/save {saved}")
    messages = json.loads(saved.read_text())
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [message["role"] for message in messages] == roles
    assert [messages[place]["content"] for place in (0, 1, 3)] == ["Be brief.", "The quick", "Once"]
    assert "exists: choose another name" in plain_chat.say(f"/save {saved}")
    assert "/mode" in plain_chat.say("/help")
    assert "/nonsense is no command" in plain_chat.say("/nonsense")
    plain_chat.say("/reset")
    plain_chat.say(f"/save {tmp_path / 'empty.json'}")
    assert [m["role"] for m in json.loads((tmp_path / "empty.json").read_text())] == ["system"]
    assert plain_chat.end("\x04") == 0


@pytest.fixture
def terminal(tiny_llama: Path) -> Iterator[Terminal]:
    yield from chat_with(tiny_llama, "--mode", "ar", "--metrics")


def test_ctrl_c_ends_the_answer_and_not_the_chat(terminal: Terminal, tmp_path: Path) -> None:
    terminal.send("The quick\r")
    terminal.expect(r"2004l[^>]*[a-z]{2}")
    terminal.interrupt()
    shown = re.search(r"\[(\d+) tokens", terminal.wait_for_prompt())
    assert shown is not None
    assert 0 < int(shown[1]) < 400  # Alone it would go on to the model's 512.
    terminal.interrupt()
    assert "ends the chat" in terminal.wait_for_prompt()
    terminal.say(f"/save {tmp_path / 'cut.json'}")
    said = json.loads((tmp_path / "cut.json").read_text())
    assert said[1]["role"] == "assistant"
    assert said[1]["content"]
    assert terminal.end() == 0


def test_without_a_terminal_lines_are_read_plainly(tiny_llama: Path) -> None:
    command = ["chat", str(tiny_llama), "--max-tokens", "5", "--ignore-eos"]
    result = CliRunner().invoke(app, command, input="The quick\n")
    assert result.exit_code == 0, result.stderr
    title, answer, *_ = result.stdout.splitlines()
    assert "mode ar" in title
    assert answer
    assert "\x1b" not in result.stdout
