"""Groups of options that several commands share.

A group is a dataclass of typer options, or the settings of a config (`GivenSettings`), each of which becomes
a flag. A command has the group as the type of a parameter. `with_options` adds the group's flags to the
command and fills the parameter from them:

    @with_options
    def generate(prompt: …, *, engine: EngineOptions, sampling: SamplingOptions) -> None: ...

It also adds `--help-all`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ssd.cli.console import user_errors
from ssd.cli.help import HelpAll
from ssd.config.schema import Field, fields_of

GivenSettings = dict[str, Any]
"""The settings of a config that the user gave."""


@dataclass(frozen=True, slots=True)
class SettingsOf:
    """Annotation of a `GivenSettings` parameter: the config whose settings become flags.

    With an owner, flags begin with its name: the draft's `width` is --draft-width. Its `model` is --draft.
    """

    config: type
    owner: str = ""
    without: tuple[str, ...] = ()

    def parameters(self) -> list[inspect.Parameter]:
        return [
            _parameter(option_name(self.owner, field.name), None, self._option(field))
            for field in self._fields()
        ]

    def _fields(self) -> list[Field]:
        return [field for name, field in fields_of(self.config).items() if name not in self.without]

    def _option(self, field: Field) -> Any:
        about, kind, default = field.about, field.kind, field.default
        if kind is bool:
            default = "on" if default else "off"
        is_told = about.tells_default and default not in (None, ())
        flag = option_name(self.owner, field.name).replace("_", "-")
        option = typer.Option(
            *(about.flags or [f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"]),
            help=f"{about.help} Default {default}." if is_told else about.help,
            rich_help_panel=about.group,
            show_default=False,
            envvar=about.variable,
        )
        if kind in _TUPLES:
            kind = list[str] if about.is_repeated else str
        return Annotated[kind | None, option]

    def taken_from(self, given: GivenSettings) -> GivenSettings:
        """Remove this config's options from `given`; returns the given ones by setting."""
        values = {field: given.pop(option_name(self.owner, field.name)) for field in self._fields()}
        return {field.name: _as_setting(field, value) for field, value in values.items() if value is not None}


def _as_setting(field: Field, value: Any) -> Any:
    if field.kind == tuple[int, ...]:
        return parse_cores(value)
    if field.kind == tuple[str, ...]:
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else tuple(value)
    return value


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_TUPLES = (tuple[int, ...], tuple[str, ...])


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that typer sees the flags of its groups."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if _is_group(hints[name])}
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items()
        if name not in groups
    ]
    shared = [each for group in groups.values() for each in _parameters_of(group)]
    shared.append(_parameter("help_all", False, HelpAll))

    @functools.wraps(command)
    def gathered(*, help_all: bool = False, **given: Any) -> None:
        with user_errors():
            filled = {name: _filled(group, given) for name, group in groups.items()}
        command(**given, **filled)

    # typer would otherwise read the signature of the wrapped command.
    del gathered.__wrapped__
    gathered.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    gathered.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return gathered


def _is_group(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or _settings_in(hint) is not None


def _settings_in(hint: Any) -> SettingsOf | None:
    return next((each for each in get_args(hint) if isinstance(each, SettingsOf)), None)


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    if settings := _settings_in(group):
        return settings.parameters()
    hints = get_type_hints(group, include_extras=True)
    found: list[inspect.Parameter] = []
    for field in dataclasses.fields(group):
        hint = hints[field.name]
        found += _parameters_of(hint) if _is_group(hint) else [_parameter(field.name, field.default, hint)]
    return found


def _filled(group: Any, given: GivenSettings) -> Any:
    """The group with the given values, which are removed from `given`."""
    if settings := _settings_in(group):
        return settings.taken_from(given)
    hints = get_type_hints(group, include_extras=True)
    return group(
        **{
            name: _filled(hints[name], given) if _is_group(hints[name]) else given.pop(name)
            for name in (field.name for field in dataclasses.fields(group))
        }
    )


def option_name(owner: str, setting: str) -> str:
    """Flat name of an owner's setting: draft.width is draft_width."""
    if not owner:
        return setting
    return owner if setting == "model" else f"{owner}_{setting}"


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
