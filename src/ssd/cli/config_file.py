"""`--config FILE` and `--speculative-config JSON`: settings from elsewhere, under those of the command line.

Knows files and vLLM's names for drafting. What is read becomes the defaults of the command's options, so
types, ranges and help stay those of the options, and whatever the command line says wins. Settings stand
under their owner (file_shape.py); a key that is no option is refused by name. A section named after a
command is laid over the rest for that command alone:

    model: Qwen/Qwen3-8B
    draft: Qwen/Qwen3-0.6B
    chat:
      temperature: 0.7
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ssd.cli.errors import user_errors
from ssd.cli.file_shape import FileShape, Place

_VLLM_KEYS = {
    "model": "draft",
    "num_speculative_tokens": "lookahead",
    "method": "mode",
}
_VLLM_METHODS = {"draft_model": "sd", "ssd": "ssd"}


def _take_file(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None and not context.resilient_parsing:
        with user_errors():
            defaults = _defaults_from(path, context)
        # Under what --speculative-config may have said already: that is the command line.
        context.default_map = {**defaults, **(context.default_map or {})}
    return path


def _take_speculation(context: typer.Context, text: str | None) -> str | None:
    if text is not None and not context.resilient_parsing:
        with user_errors():
            defaults = draft_settings(text)
        context.default_map = {**(context.default_map or {}), **defaults}
    return text


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_take_file,
        is_eager=True,
        help="Options from a .yaml or .toml file, by their long names; the command line wins.",
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        metavar="JSON",
        callback=_take_speculation,
        is_eager=True,
        rich_help_panel="Drafting",
        help='As vLLM takes it: {"model": DRAFT, "num_speculative_tokens": 5, "method": "draft_model"}. '
        "Method draft_model is mode sd, ssd (or none) is mode ssd. Single flags win over it.",
    ),
]


def draft_settings(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's speculative config as our settings: draft, lookahead, mode."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise ValueError(f"--speculative-config is not JSON ({error}): quote it as one word") from error
    if not isinstance(given, Mapping):
        raise ValueError('--speculative-config is an object such as {"model": "SMALL_MODEL"}')
    unknown = [key for key in given if key not in _VLLM_KEYS]
    if unknown:
        raise ValueError(
            f"--speculative-config: {unknown[0]!r} has no meaning here; known are {', '.join(_VLLM_KEYS)}"
        )
    settings = {_VLLM_KEYS[key]: value for key, value in given.items()}
    if "mode" in settings:
        settings["mode"] = _mode_of(settings["mode"])
    return settings


def _mode_of(method: object) -> str:
    if method not in _VLLM_METHODS:
        known = " or ".join(_VLLM_METHODS)
        raise ValueError(f"--speculative-config: method {method!r} is not supported: use {known}")
    return _VLLM_METHODS[str(method)]


def _defaults_from(path: Path, context: typer.Context) -> dict[str, Any]:
    content, shape = _read(path), FileShape(context)
    # `run: FOLDER` is an option, though there is a command of that name: a section has keys of its own.
    of_commands = {
        key: value or {}
        for key, value in content.items()
        if key in shape.sections and isinstance(value or {}, Mapping)
    }
    rest = {key: value for key, value in content.items() if key not in of_commands}
    own = of_commands.get(shape.command, {})
    return _defaults_of(rest, shape, path) | _defaults_of(own, shape, path)


def _defaults_of(layer: Mapping[str, Any], shape: FileShape, path: Path) -> dict[str, Any]:
    """By names of options."""
    defaults: dict[str, Any] = {}
    for place, key, value in _entries(layer, path):
        option = shape.option_at(place)
        if option is None and shape.is_for_others(place):
            continue
        if option is None:
            raise ValueError(f"--config {path}: {shape.unknown(place, key)}")
        if option.name == "speculative_config":
            defaults = {**draft_settings(value), **defaults}
        elif value is not None:
            defaults[option.name] = _as_typed(value, is_list=option.multiple)
    return defaults


def _entries(layer: Mapping[str, Any], path: Path) -> Iterator[tuple[Place, str, Any]]:
    """Owners last: what a draft says itself is over what it takes over."""
    owners = {"draft": layer.get("draft"), "server": layer.get("server")}
    for key, value in layer.items():
        if key not in owners:
            yield ("", str(key).replace("-", "_")), str(key), value
    if isinstance(owners["draft"], str):
        owners["draft"] = {"model": owners["draft"]}
    for owner, section in owners.items():
        if not isinstance(section or {}, Mapping):
            raise ValueError(f"--config {path}: {owner!r} is a section, with `name: value` on lines below it")
        for key, value in (section or {}).items():
            yield (owner, str(key).replace("-", "_")), str(key), value


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
        content = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}: check the path") from error
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"--config {path} cannot be read ({why}): write `name: value` lines") from error
    if path.suffix not in (".yaml", ".yml", ".toml"):
        raise ValueError(f"--config {path}: name it .yaml or .toml, so that it can be told which it is")
    if not isinstance(content or {}, Mapping):
        raise ValueError(f"--config {path}: write `name: value`, one option a line")
    return content or {}


def _as_typed(value: Any, *, is_list: bool) -> Any:
    """A list for an option that is given once, such as cores, is what one writes with commas."""
    if is_list:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value
