"""`ssd chat` as a user has it: a real program on a real terminal, with a tiny model."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

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


@pytest.fixture
def terminal(tiny_llama: Path, request: Any) -> Iterator[Terminal]:
    chat = Terminal(str(tiny_llama), "--draft", str(tiny_llama), *getattr(request, "param", ()))
    chat.wait_for_prompt()
    yield chat
    chat.close()


GREEDY = ("--mode", "ar", "--max-tokens", "12", "--deterministic", "--metrics", "--ignore-eos")


@pytest.mark.parametrize("terminal", [GREEDY], indirect=True)
def test_modes_change_live_and_the_answers_do_not(terminal: Terminal) -> None:
    def answer() -> str:
        terminal.say("/reset")
        return terminal.say("The quick")

    alone = answer()
    assert re.search(r"\[12 tokens, [\d.]+ tok/s, first after [\d.]+ s\]", alone)
    assert "mode sd" in terminal.say("/mode sd")
    in_turns = answer()
    assert "mode ssd" in terminal.say("/mode ssd")
    ahead = answer()
    assert "mode ar" in terminal.say("/mode ar")
    again = answer()
    texts = [text.split("[12 tokens")[0] for text in (alone, in_turns, ahead, again)]
    assert len(set(texts)) == 1, texts
    assert "accepted a round" in in_turns
    assert re.search(r"hits \d+%, [\d.]+ accepted a round", ahead)
    assert "accepted" not in again
    assert terminal.end() == 0


@pytest.mark.parametrize("terminal", [GREEDY], indirect=True)
def test_a_draft_that_cannot_be_had_changes_nothing(terminal: Terminal) -> None:
    before = terminal.say("The quick").split("[12 tokens")[0]
    assert "no model at" in terminal.say("/mode ssd /nowhere")
    terminal.say("/reset")
    assert terminal.say("The quick").split("[12 tokens")[0] == before
    assert "mode sd" in terminal.say("/mode sd")


@pytest.mark.parametrize("terminal", [("--mode", "ar", "--max-tokens", "4", "--ignore-eos")], indirect=True)
def test_commands(terminal: Terminal, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    terminal.say("/system Be brief.")
    terminal.say("The quick")
    terminal.say("Once")
    assert f"saved as {saved}" in terminal.say(f"/save {saved}")
    messages = json.loads(saved.read_text())
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [message["role"] for message in messages] == roles
    assert [messages[place]["content"] for place in (0, 1, 3)] == ["Be brief.", "The quick", "Once"]
    assert "exists: choose another name" in terminal.say(f"/save {saved}")
    assert "/mode" in terminal.say("/help")
    assert "/nonsense is no command" in terminal.say("/nonsense")
    terminal.say("/reset")
    terminal.say(f"/save {tmp_path / 'empty.json'}")
    assert [m["role"] for m in json.loads((tmp_path / "empty.json").read_text())] == ["system"]
    assert terminal.end("\x04") == 0


@pytest.mark.parametrize("terminal", [("--ignore-eos", "--mode", "ar", "--metrics")], indirect=True)
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


@pytest.mark.parametrize("terminal", [("--mode", "ar", "--max-tokens", "1", "--ignore-eos")], indirect=True)
def test_lines_can_be_edited_and_called_back(terminal: Terminal, tmp_path: Path) -> None:
    terminal.say("The quack\x7f\x7f\x7fick")
    terminal.say("\x1b[A")
    terminal.say("two\x1b\rlines")
    terminal.say(f"/save {tmp_path / 'talk.json'}")
    asked = [m["content"] for m in json.loads((tmp_path / "talk.json").read_text()) if m["role"] == "user"]
    assert asked == ["The quick", "The quick", "two\nlines"]


@pytest.mark.parametrize(
    "terminal", [("--mode", "sd", "--color-origins", "--max-tokens", "9")], indirect=True
)
def test_tokens_are_coloured_by_origin(terminal: Terminal) -> None:
    terminal.send("The quick\r")
    terminal.expect("\x1b\\[32m")
    terminal.wait_for_prompt()


def test_loading_shows_how_far_it_is(tiny_llama: Path) -> None:
    chat = Terminal(str(tiny_llama), "--draft", str(tiny_llama))
    chat.expect("loading tiny-llama")
    chat.expect("starting the draft")
    chat.wait_for_prompt()
    assert chat.end() == 0


def test_without_a_terminal_lines_are_read_plainly(tiny_llama: Path) -> None:
    command = [sys.executable, "-m", "ssd", "chat", str(tiny_llama), "--max-tokens", "5", "--ignore-eos"]
    result = subprocess.run(command, input="The quick\n", capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    title, answer, *_ = result.stdout.splitlines()
    assert "mode ar" in title
    assert answer
    assert "\x1b" not in result.stdout


def test_a_model_that_is_missing_is_one_sentence() -> None:
    command = [sys.executable, "-m", "ssd", "chat", "/nowhere"]
    result = subprocess.run(command, input="", capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "no model at /nowhere" in result.stderr
    assert "Traceback" not in result.stderr
