"""Every command of README and docs: run, where it is quick and needs nothing; parsed by its own parser else.

`RUN` says which are run, on tiny models in folders called MODEL and SMALL_MODEL. What is only parsed needs a
GPU, vLLM, a server, other people's prompts or more than a minute. `OTHERS` are programs that are not ours.
"""

import argparse
import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
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
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *(each for each in sorted(ROOT.glob("docs/*.md")) if each.name != "log.md"),
]
RUN = {
    "ssd doctor": "",
    "ssd chat MODEL": "/quit\n",
    "ssd generate MODEL --draft SMALL_MODEL --prompt 'def fibonacci(n):' --explain": "",
    "ssd serve Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --engine vllm --print-commands": "",
    "ssd draft --make-keys keys": "",
    "ssd plan --hardware h100 --target 70B --draft 1B --acceptance 0.88": "",
    "ssd plan --list": "",
}
"""And what is typed."""
OTHERS = (
    "pip",
    "hf",
    "pytest",
    "pre-commit",
    "git",
    "cmake",
    "optimum-cli",
    "vllm",
    "guidellm",
    "aiperf",
    "curl",
    "docker",
    "kubectl",
    "nvidia-cuda-mps-control",
    "export",
    ".",
)
_MODULES = ("benchmarks.", "campaigns.", "tests.", "ssd.")
_SCRIPTS = "examples/"
_OURS = "ssd-llm"


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def program(self) -> str:
        return Path(self.words[0]).name or self.words[0]


def _commands(page: Path) -> Iterator[Command]:
    for block in re.findall(r"^```bash\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        said = ""
        for line in block.replace("\\\n", " ").splitlines():
            said += line + "\n"
            try:
                words = shlex.split(said, comments=True)
            except ValueError:  # a quotation that goes on
                continue
            said = ""
            yield from (Command(page.name, each) for each in _single(words) if words)


def _single(words: list[str]) -> Iterator[tuple[str, ...]]:
    """One after the other, without variables before them and what sends them to the background."""
    for part in re.split(r"\0&&\0", "\0".join(words)):
        found = [word for word in part.split("\0") if word != "&"]
        while found and re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", found[0]):
            found.pop(0)
        if found:
            yield tuple(found)
        if found[:2] == ["docker", "run"]:  # What follows our image is for the command that it runs.
            image = next(place for place, word in enumerate(found) if word.startswith("ssd:"))
            yield ("ssd", "serve", *found[image + 1 :])


ALL = sorted(
    {(str(command), command) for page in PAGES for command in _commands(page)}, key=lambda each: each[0]
)
OF_SSD = {text: command for text, command in ALL if command.program == "ssd"}
OF_MODULES = {
    text: command
    for text, command in ALL
    if command.words[1:2] == ("-m",) and command.words[2].startswith(_MODULES)
}
OF_SCRIPTS = {
    text: command for text, command in ALL if command.words[1:] and command.words[1].startswith(_SCRIPTS)
}


class _ParsedError(Exception):
    pass


@pytest.fixture
def only_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is started ends when its arguments were understood."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *given: Any, **named: Any) -> Any:
        parse(self, *given, **named)
        raise _ParsedError

    def parsed(*_: Any) -> Any:
        raise _ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(TyperCommand, "invoke", parsed)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what commands name."""
    (tmp_path / "tuned.yaml").write_text("model: MODEL\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", OF_SSD)
@pytest.mark.usefixtures("here", "only_parsing")
def test_commands_of_ssd_are_understood(text: str) -> None:
    with pytest.raises(_ParsedError):
        typer.main.get_command(app).main(list(OF_SSD[text].words[1:]), prog_name="ssd", standalone_mode=False)


@pytest.mark.parametrize("text", RUN)
def test_what_is_quick_is_run(text: str, here: Path) -> None:
    assert text in OF_SSD, "no page has it any more"
    for name in ("MODEL", "SMALL_MODEL"):
        write_checkpoint("llama3", here / name)
    environment = {"COLUMNS": "120", "SSD_HF_CACHE": str(here / "cache")}
    done = CliRunner().invoke(app, list(OF_SSD[text].words[1:]), input=RUN[text], env=environment)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("text", OF_MODULES)
@pytest.mark.usefixtures("here", "only_parsing")
def test_commands_of_modules_are_understood(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *arguments = OF_MODULES[text].words[2:]
    monkeypatch.setattr("sys.argv", [module, *arguments])
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    except _ParsedError:
        return
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith(("ssd", "benchmarks", "campaigns", "tests")):
            pytest.skip(f"needs {error.name}")
        raise
    pytest.fail("it does not look at its arguments")


@pytest.mark.parametrize("text", OF_SCRIPTS)
@pytest.mark.usefixtures("here", "only_parsing")
def test_commands_of_examples_are_understood(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they do is held by tests/test_tutorial.py."""
    script, *arguments = OF_SCRIPTS[text].words[1:]
    monkeypatch.setattr("sys.argv", [script, *arguments])
    with pytest.raises(_ParsedError):
        runpy.run_path(str(ROOT / script), run_name="__main__")


def test_every_command_is_ours_or_known() -> None:
    ours = OF_SSD | OF_MODULES | OF_SCRIPTS
    rest = [command for text, command in ALL if text not in ours]
    unknown = [
        str(command)
        for command in rest
        if command.program not in OTHERS
        and command.words[1:3] != ("-m", "venv")
        and "convert_hf_to_gguf.py" not in str(command)
    ]
    assert unknown == []


def test_what_pip_installs_of_ours_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        word
        for _, each in ALL
        if each.program == "pip"
        for word in each.words
        if word.startswith((_OURS, "."))
    ]
    assert len(named) > 3
    for word in named:
        extras = re.search(r"\[(.*)\]", word)
        assert set(extras[1].split(",") if extras else ()) <= set(project["optional-dependencies"])


def test_what_curl_sends_is_a_request() -> None:
    sent = [each.words for _, each in ALL if each.program == "curl" and "-d" in each.words]
    bodies = [words[words.index("-d") + 1] for words in sent]
    assert len(bodies) >= 2
    for body in bodies:
        ChatCompletionRequest.model_validate(json.loads(body))


def test_what_vllm_is_told_is_what_our_own_command_tells_it() -> None:
    """On a GPU, where vLLM chooses its V2 runner."""
    (command,) = [each for _, each in ALL if each.program == "vllm" and each.words[1] == "serve"]
    told = dict(zip(command.words[3::2], command.words[4::2], strict=True))
    expected = arguments("ipc:///run/ssd/draft.sock", runner="v2")
    assert told.pop("--worker-cls") == expected["worker_cls"]
    assert {flag: json.loads(said) for flag, said in told.items()} == {
        "--speculative-config": expected["speculative_config"],
        "--additional-config": expected["additional_config"],
    }
    module, _, kind = expected["worker_cls"].rpartition(".")
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    assert re.search(rf"^class {kind}\b", Path(found.origin).read_text(), re.MULTILINE)


def _mentioned() -> Iterator[tuple[str, str]]:
    """Commands within sentences: `ssd serve --engine vllm`."""
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        if page.name == "upgrade.md":  # The first column has what earlier versions had: tests/test_upgrade.py
            prose = re.sub(r"^\| [^|]*", "", prose, flags=re.MULTILINE)
        for said in re.findall(r"`ssd ([a-z][^`]*)`", prose):
            yield page.name, " ".join(said.split())


def test_flags_within_sentences_exist() -> None:
    root: Any = typer.main.get_command(app)
    wrong = []
    for page, said in _mentioned():
        words, command = said.split(" -- ")[0].split(), root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        if command is root or not set(flags) <= known | {"--help", "--help-all"}:
            wrong.append((page, said))
    assert wrong == []
