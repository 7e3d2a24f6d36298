"""Options that several commands share, written once: how a command takes a group of them.

A group is a dataclass whose fields are typer options. A command names the group as the type of a
parameter, and `with_options` spreads its fields over the command line and gathers them again:

    @with_options
    def generate(prompt: …, *, engine: EngineOptions, sampling: SamplingOptions) -> None: ...

What every command has, `--help-all`, comes along.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from ssd.cli.help import HelpAll

_HELP_ALL = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its groups spread: what typer reads, and what it then calls."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if dataclasses.is_dataclass(hints[name])}
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items()
        if name not in groups
    ]
    shared = [parameter for group in groups.values() for parameter in _parameters_of(group)] + [_HELP_ALL]

    @functools.wraps(command)
    def gathered(*, help_all: bool = False, **said: Any) -> None:
        filled = {
            name: group(**{each.name: said.pop(each.name) for each in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**said, **filled)

    # typer reads the signature; wraps would otherwise lead it to the command's own.
    del gathered.__wrapped__
    gathered.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    gathered.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return gathered


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]


def parse_cores(text: str) -> tuple[int, ...]:
    """`0,2-4` → (0, 2, 3, 4)."""
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        last = last or first
        if not first.isdigit() or not last.isdigit() or int(last) < int(first):
            raise ValueError(f"--cores {text!r}: write numbers and ranges, such as 0,2-4")
        cores.extend(range(int(first), int(last) + 1))
    return tuple(cores)
