"""Options that several commands share, written once: how a command takes a group of them.

A group is a dataclass whose fields are typer options. A command names the group as the type of a
parameter, and `with_options` spreads its fields over the command line and gathers them again:

    @with_options
    def generate(prompt: …, *, engine: EngineOptions, sampling: SamplingOptions) -> None: ...

A group within a group belongs to another owner, whose name its flags begin with: `width` of a field `draft`
is --draft-width; its `model` is the owner itself, --draft. What every command has, `--help-all`, comes along.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer

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
        filled = {name: _filled(group, said) for name, group in groups.items()}
        command(**said, **filled)

    # typer reads the signature; wraps would otherwise lead it to the command's own.
    del gathered.__wrapped__
    gathered.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    gathered.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return gathered


def _parameters_of(group: Any, owner: str = "") -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    found: list[inspect.Parameter] = []
    for field in dataclasses.fields(group):
        if dataclasses.is_dataclass(hints[field.name]):
            found += _parameters_of(hints[field.name], owner=field.name)
            continue
        name, kind = option_name(owner, field.name), inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(name, kind, default=field.default, annotation=hints[field.name]))
    return found


def _filled(group: Any, said: dict[str, Any], owner: str = "") -> Any:
    """The group with what was said, which is taken out of `said`."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: _filled(hints[field.name], said, owner=field.name)
            if dataclasses.is_dataclass(hints[field.name])
            else said.pop(option_name(owner, field.name))
            for field in dataclasses.fields(group)
        }
    )


def option_name(owner: str, setting: str) -> str:
    """How a setting of an owner is called where there is but one level: draft.width is draft_width."""
    if not owner:
        return setting
    return owner if setting == "model" else f"{owner}_{setting}"


def setting(config: type, name: str, help_text: str, panel: str, *flags: str, **more: Any) -> Any:
    """An option for a setting of a config class, whose default it tells."""
    default = next(field.default for field in dataclasses.fields(config) if field.name == name)
    is_told = default not in (None, (), dataclasses.MISSING)
    return typer.Option(
        *flags,
        help=f"{help_text} Default {_spelled(default)}." if is_told else help_text,
        rich_help_panel=panel,
        show_default=False,
        **more,
    )


def _spelled(default: object) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def said_in(group: Any) -> dict[str, Any]:
    """What was said of a group's own options; None stands for nothing."""
    values = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return {
        name: value
        for name, value in values.items()
        if value is not None and not dataclasses.is_dataclass(value)
    }


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
