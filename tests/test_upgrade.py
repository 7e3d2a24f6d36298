"""The table of docs/upgrade.md: what 0.2 had and this version has not is in it, and what it names is there.

tests/release_0_2.json lists what 0.2.0 offered: flags, settings, metrics, variables, public names.
"""

import dataclasses
import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import ssd
from ssd.cli.main import app
from ssd.config import DraftConfig, EngineConfig
from ssd.config.server import ServerConfig
from ssd.integrations.vllm.settings import Settings
from tests.test_fleet import exported

ROOT = Path(__file__).parent.parent
OLD: dict[str, Any] = json.loads((ROOT / "tests/release_0_2.json").read_text())
SECTION = (ROOT / "docs/upgrade.md").read_text().partition("\n## From 0.2 to 0.3\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\| .*", SECTION, re.MULTILINE)[2:]
]
MODULES = [row for row in ROWS if re.fullmatch(r"`ssd(\.\w+){2,}`", row[0])]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def flags() -> dict[str, set[str]]:
    """Of each command, as its parser has them."""
    found: dict[str, set[str]] = {}

    def visit(command: Any, name: str) -> None:
        found[name] = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        for part, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{name} {part}".strip())

    visit(typer.main.get_command(app), "")
    return found


def gone() -> set[str]:
    """What 0.2 offered and this version does not."""
    now, lost = flags(), set[str]()
    for command, known in OLD["flags"].items():
        if command not in now:
            lost.add(f"ssd {command}")
        else:
            lost |= set(known) - now[command]
    configs = (EngineConfig, DraftConfig, ServerConfig, Settings)
    for config in configs:
        lost |= set(OLD["settings"][config.__name__]) - {each.name for each in dataclasses.fields(config)}
    source = "".join(
        path.read_text() for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("deploy/*")) if path.is_file()
    )
    lost |= {each for each in OLD["environment"] if each not in source}
    lost |= set(OLD["metrics"]) - exported()
    return lost | {each for each in OLD["public"] if each not in ssd.__all__}


def test_what_is_gone_is_in_the_table() -> None:
    assert len(ROWS) > 10
    words = {word for row in ROWS for name in named(row[0]) for word in (name, *name.split())}
    assert {"ssd bench serve", "--fleet", "SSD_GUIDELLM"} <= gone()
    assert gone() - words == set()


def test_what_the_table_calls_gone_is_gone() -> None:
    now = flags()
    command = ""
    for name in (name for row in ROWS for name in named(row[0])):
        words = name.split()
        if words[0] == "ssd" and not words[-1].startswith("--"):
            assert " ".join(words[1:]) not in now
        elif words[-1].startswith("--") and name != "--speculative-config":
            command = " ".join(words[1:-1]) or command
            assert words[-1] not in now[command], name


@pytest.mark.parametrize(("before", "after"), MODULES)
def test_modules_have_moved(before: str, after: str) -> None:
    def is_there(dotted: str) -> bool:
        module, _, name = dotted.rpartition(".")
        try:
            return find_spec(module) is not None and hasattr(import_module(module), name)
        except ModuleNotFoundError:
            return False

    assert [is_there(*named(each)) for each in (before, after)] == [False, True]


def test_the_keys_of_a_speculative_config_that_are_gone_are_refused() -> None:
    in_table = {name for row in ROWS for name in named(row[0])}
    for key in OLD["speculative_config"]:
        given = json.dumps({"model": "small", key: "x"})
        ran = CliRunner().invoke(app, ["generate", "m", "-p", "hi", "--speculative-config", given])
        is_refused = f"'{key}' has no meaning here" in " ".join(ran.output.split())
        assert is_refused == (key in in_table), ran.output
