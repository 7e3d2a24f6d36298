"""`--help` fits a screen and misses nothing that must be said; `--help-all` has everything."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ssd.cli.help import COMMON
from ssd.cli.main import app
from ssd.config import DraftConfig
from ssd.engine.drafting import draft_arguments

_LINES, _COLUMNS = 30, 80


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


ALL = dict(_commands(typer.main.get_command(app)))


def _told(command: str, flag: str, columns: int) -> str:
    done = CliRunner().invoke(app, [*command.split(), flag], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_arguments_it_says_where_to_begin() -> None:
    """Commands to paste, whose options exist."""
    done = CliRunner().invoke(app, [], env={"COLUMNS": str(_COLUMNS)})
    assert done.exit_code == 0, done.output
    commands = [line.split() for line in done.output.splitlines() if line.startswith("    ssd ")]
    assert [words[1] for words in commands] == ["chat", "serve", "doctor"]
    for _, command, *words in commands:
        assert {word for word in words if word.startswith("--")} <= _flags(_told(command, "--help", 200))


def _flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", text))


def _shown(command: str) -> list[Any]:
    return [each for each in ALL[command].params if not each.hidden]


@pytest.mark.parametrize("command", ALL)
def test_help_fits_a_screen(command: str) -> None:
    lines = _told(command, "--help", _COLUMNS).rstrip().splitlines()
    assert len(lines) <= _LINES
    # What may be wider is a command that is copied as one line.
    assert [line for line in lines if len(line) > _COLUMNS and not line.startswith("  ssd ")] == []


@pytest.mark.parametrize("command", COMMON)
def test_it_shows_what_it_names_and_whatever_must_be_said(command: str) -> None:
    table = _told(command, "--help", 100).rpartition("\n\n")[0].rpartition("\n\n")[2]
    known = {flag for each in _shown(command) for flag in each.opts}
    assert set(COMMON[command]) <= known
    assert [flag for flag in COMMON[command] if f"  {flag}" not in table] == []
    required = {each.opts[0] for each in _shown(command) if each.required}
    assert required <= set(COMMON[command])
    assert ("  MODEL  " in table) == any(each.param_type_name == "argument" for each in _shown(command))


@pytest.mark.parametrize("command", ALL)
def test_help_all_has_every_option(command: str) -> None:
    text = _told(command, "--help-all", 400)
    said = {flag for each in _shown(command) for flag in (*each.opts, *each.secondary_opts)}
    assert {flag for flag in said if flag.startswith("--")} - _flags(text) == set()
    helps = [" ".join((each.help or "").split()) for each in _shown(command)]
    assert [each for each in helps if each not in text] == []


def test_a_draft_that_an_engine_starts_is_given_flags_that_it_has() -> None:
    config = DraftConfig(
        model="m", name="n", dtype="float32", head=1, kv_cache_bytes=1, max_num_seqs=1, keys="k"
    )
    flags = [word for word in draft_arguments(config) if word.startswith("--")]
    assert "--width" in flags
    assert set(flags) <= {flag for each in ALL["draft"].params for flag in each.opts}
