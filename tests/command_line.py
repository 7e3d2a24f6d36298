"""Parses words of a command with the parser of `ssd` itself, and runs nothing."""

from typing import Any

import typer

from ssd.cli.main import app


def parse(words: list[str]) -> dict[str, Any]:
    """The parameters of `ssd COMMAND …`; raises where a flag does not exist or a value does not fit."""
    assert words[0] == "ssd"
    group = typer.main.get_command(app)
    command = group.commands[words[1]]  # type: ignore[attr-defined]
    with command.make_context(words[1], words[2:]) as context:
        found: dict[str, Any] = context.params
        return found
