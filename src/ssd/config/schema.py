"""Declares settings: type, default, range, meaning and flag.

A config is a frozen dataclass whose fields are annotated with a `Setting`. Checks (here), flags and files
(cli/options.py, cli/config_file.py) and the tables of docs/settings.md are derived from it.
"""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Setting:
    help: str
    """One sentence for `--help-all` and docs/settings.md."""
    _: KW_ONLY
    group: str = ""
    """Heading in the command line's help."""
    least: float | None = None
    most: float | None = None
    """Largest number, or longest text."""
    multiple_of: int | None = None
    remedy: str = ""
    """Error message for an invalid value; default: its type and range."""
    flags: Sequence[str] = ()
    """Flags; default: one flag made from the name."""
    is_repeated: bool = False
    """Whether a tuple's flag is repeated for each value; otherwise values are separated by commas."""
    variable: str | None = None
    """Environment variable that is read if neither flag nor file gives a value."""
    tells_default: bool = True
    """Whether the help names the default."""


@dataclass(frozen=True, slots=True)
class Field:
    """A declared setting of a config."""

    name: str
    kind: Any
    """Its type without None, which means "not given" where it is allowed."""
    allows_none: bool
    default: Any
    """None if the setting is required."""
    about: Setting


@cache
def fields_of(config: Any) -> dict[str, Field]:
    """The settings of a config class by name."""
    hints = get_type_hints(config, include_extras=True)
    return {each.name: _field(each, hints[each.name]) for each in dataclasses.fields(config)}


def _field(field: "dataclasses.Field[Any]", hint: Any) -> Field:
    kind, about = get_args(hint)
    is_union = get_origin(kind) in (Union, types.UnionType)
    kinds = [each for each in get_args(kind) if each is not types.NoneType] if is_union else [kind]
    default = None if field.default is dataclasses.MISSING else field.default
    return Field(field.name, kinds[0], is_union, default, about)


def check(config: Any, owner: str = "") -> None:
    """Raise ValueError for the first setting with an invalid type or value."""
    for name, field in fields_of(config.__class__).items():
        value = getattr(config, name)
        if value is None and field.allows_none:
            continue
        if wrong := _what_is_wrong(value, field.kind, field.about):
            raise ValueError(f"{owner}{name}={value!r}: {field.about.remedy or wrong}")


def _what_is_wrong(value: Any, kind: Any, about: Setting) -> str:
    """What the value must be; empty if it is valid."""
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else f"use one of {', '.join(get_args(kind))}"
    if kind == tuple[int, ...]:
        return "" if _are_cores(value) else "a tuple that names each core once, counting from 0"
    if kind == tuple[str, ...]:
        are_texts = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
        return "" if are_texts else "must be a tuple of texts"
    if kind is bool:
        return "" if isinstance(value, bool) else "must be true or false"
    if kind in (int, float):
        return "" if _is_number(value, kind, about) else f"must be {_range(kind, about)}"
    if kind is str:
        is_text = isinstance(value, str) and 0 < len(value) <= (about.most or len(value))
        return "" if is_text else "must be a text that is not empty"
    return "" if isinstance(value, kind) else f"must be a {kind.__name__}"


def _are_cores(value: Any) -> bool:
    is_tuple = isinstance(value, tuple) and all(isinstance(core, int) and core >= 0 for core in value)
    return is_tuple and len(set(value)) == len(value)


def _is_number(value: Any, kind: type, about: Setting) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        return False
    is_high_enough = about.least is None or value >= about.least
    is_low_enough = about.most is None or value <= about.most
    is_multiple = about.multiple_of is None or value % about.multiple_of == 0
    return is_high_enough and is_low_enough and is_multiple


def _range(kind: type, about: Setting) -> str:
    if about.multiple_of is not None:
        return f"a multiple of {about.multiple_of}"
    if about.most is not None:
        return f"between {about.least} and {about.most}"
    number = "a whole number" if kind is int else "a number"
    return number if about.least is None else f"{number} of at least {about.least}"


def refuse_unknown(given: Iterable[Any], config: type, owner: str = "") -> None:
    """Raise ValueError for the first unknown name, with the most similar known one."""
    known = fields_of(config)
    for name in map(str, given):
        if name not in known:
            hint = nearest(name, known, otherwise=f"known settings: {', '.join(known)}")
            raise ValueError(f"unknown setting {owner}{name}: {hint}")


def nearest(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A hint with the most similar known name, or `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def changed_settings(config: Any) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    fields = fields_of(config.__class__)
    values = {name: getattr(config, name) for name in fields}
    return {name: value for name, value in values.items() if value != fields[name].default}
