"""Commands of README and of the pages where people begin: quick ones run, the others are parsed.

Quick ones run on tiny models in folders called MODEL and SMALL_MODEL. Programs that are not ours are not
checked.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand
from typer.testing import CliRunner

from ssd.cli.main import app
from ssd.integrations.vllm import arguments
from ssd.server.schemas import ChatCompletionRequest
from tests.tiny import write_checkpoint

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
RUN = {
    "ssd doctor": "",
    "ssd chat MODEL": "/quit\n",
    "ssd generate MODEL --draft SMALL_MODEL --prompt 'def fibonacci(n):' --explain": "",
    "ssd serve Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --engine vllm --print-commands": "",
    "ssd plan --list": "",
}
"""Commands that run here, and what is typed into each."""


def _commands(page: Path) -> Iterator[list[str]]:
    for block in re.findall(r"^ *```bash\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL):
        said = ""
        for line in block.replace("\\\n", " ").splitlines():
            said += line + "\n"
            try:
                words = shlex.split(said, comments=True)
            except ValueError:  # a quotation that goes on
                continue
            said = ""
            for part in re.split(r"\0&&\0", "\0".join(words)):
                found = [word for word in part.split("\0") if word != "&"]
                while found and re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", found[0]):
                    found.pop(0)
                if found:
                    yield found


ALL = [words for page in PAGES for words in _commands(page)]
OF_SSD = {shlex.join(words): words for words in ALL if words[0] == "ssd"}


class _ParsedError(Exception):
    pass


@pytest.mark.parametrize("text", sorted(OF_SSD))
def test_commands_are_understood(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*_: Any) -> Any:
        raise _ParsedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TyperCommand, "invoke", parsed)
    with pytest.raises(_ParsedError):
        typer.main.get_command(app).main(OF_SSD[text][1:], prog_name="ssd", standalone_mode=False)


@pytest.mark.parametrize("text", RUN)
def test_quick_commands_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert text in OF_SSD, "no page has this command"
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL", "SMALL_MODEL"):
        write_checkpoint("llama3", tmp_path / name)
    environment = {"COLUMNS": "120", "SSD_HF_CACHE": str(tmp_path / "cache")}
    done = CliRunner().invoke(app, OF_SSD[text][1:], input=RUN[text], env=environment)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("script", ["grow_a_tree", "growth_policy"])
def test_examples_run(script: str) -> None:
    command = [sys.executable, f"examples/{script}.py"]
    assert subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout


def test_modules_that_pages_run_exist() -> None:
    ours = ("benchmarks.", "tests.", "ssd.")
    modules = {words[2] for words in ALL if words[1:2] == ["-m"] and words[2].startswith(ours)}
    places = [base / module.replace(".", "/") for module in modules for base in (ROOT, ROOT / "src")]
    found = {place.as_posix() for place in places if place.with_suffix(".py").exists() or place.is_dir()}
    assert len(found) == len(modules), modules


def test_bodies_that_pages_send_are_requests() -> None:
    sent = [words[words.index("-d") + 1] for words in ALL if words[0] == "curl" and "-d" in words]
    assert len(sent) >= 2
    for body in sent:
        ChatCompletionRequest.model_validate(json.loads(body))


def test_vllm_is_started_as_our_own_command_starts_it() -> None:
    (command,) = [words for words in ALL if words[:2] == ["vllm", "serve"]]
    told = dict(zip(command[3::2], command[4::2], strict=True))
    expected = arguments("ipc:///run/ssd/draft.sock", runner="v2")
    assert told.pop("--worker-cls") == expected["worker_cls"]
    assert {flag: json.loads(said) for flag, said in told.items()} == {
        "--speculative-config": expected["speculative_config"],
        "--additional-config": expected["additional_config"],
    }


def test_flags_within_sentences_exist() -> None:
    root: Any = typer.main.get_command(app)
    wrong = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        if page.name == "upgrade.md":  # The first column names what earlier versions had.
            prose = re.sub(r"^\| [^|]*", "", prose, flags=re.MULTILINE)
        for said in re.findall(r"`ssd ([a-z][^`]*)`", prose):
            words, command = said.split(" -- ")[0].split(), root
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
            flags = {word.partition("=")[0] for word in words if word.startswith("--")}
            if command is root or not flags <= known | {"--help", "--help-all"}:
                wrong.append((page.name, said))
    assert wrong == []
