"""`--config FILE` and `--speculative-config JSON`: settings that the command line overrides.

The file's values become defaults of the command's options, so that types and ranges are checked as those of
flags are. Settings of the engine and options of the command are at the top level, those of draft and server
in their sections. A section named after a command applies to that command only and overrides the rest:

    model: Qwen/Qwen3-8B
    draft:
      model: Qwen/Qwen3-0.6B
      width: 12
    server:
      port: 8000
    chat:
      temperature: 0.7

A key that is no option of any command is an error.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ssd.cli.console import user_errors
from ssd.cli.help import command_of
from ssd.cli.options import option_name
from ssd.config import DraftConfig
from ssd.config.schema import fields_of
from ssd.config.server import ServerConfig

_NEVER_IN_FILES = ("--config", "--help", "--help-all")
_DRAFT = "draft"
"""Name of the draft's section in files, and of the command that reads this section."""
_TAKEN_OVER = ("dtype", "kv_cache_bytes", "max_num_seqs", "hf_cache")
"""Settings that a draft inherits from its engine."""
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
        # --speculative-config is part of the command line and wins over the file.
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
        if settings["mode"] not in _VLLM_METHODS:
            known = " or ".join(_VLLM_METHODS)
            raise ValueError(
                f"--speculative-config: method {settings['mode']!r} is not supported: use {known}"
            )
        settings["mode"] = _VLLM_METHODS[settings["mode"]]
    return settings


def _defaults_from(path: Path, context: typer.Context) -> dict[str, Any]:
    commands = dict(_commands_of(context.find_root().command))
    places = {name: _places_of(name, command) for name, command in commands.items()}
    reader = _FileReader(command_of(context), places, path)
    names = {name.rpartition(" ")[2] for name in commands} - {_DRAFT}
    content = _read(path)
    # `run: FOLDER` is an option although `run` is also a command: a section is a mapping.
    sections = {
        key: value or {}
        for key, value in content.items()
        if key in names and isinstance(value or {}, Mapping)
    }
    rest = {key: value for key, value in content.items() if key not in sections}
    return reader.defaults(rest) | reader.defaults(sections.get(str(context.info_name), {}))


def _commands_of(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """All commands by name, including those of groups (`bench run`)."""
    for name, each in getattr(command, "commands", {}).items():
        yield f"{above}{name}", each
        yield from _commands_of(each, f"{above}{name} ")


def _places_of(command_name: str, command: Any) -> dict[str, Any]:
    """Options by their keys in a file, such as `draft.width` or `lookahead`, in every spelling."""
    options: dict[str, Any] = {}
    for option in getattr(command, "params", ()):
        flags = [flag for flag in option.opts if flag.startswith("--")]
        if flags and not set(flags) & set(_NEVER_IN_FILES):
            spellings = [option.name, *(flag.removeprefix("--").replace("-", "_") for flag in flags)]
            options |= dict.fromkeys(spellings, option)
    if command_name == _DRAFT:
        taken_over = {name: options[name] for name in _TAKEN_OVER if name in options}
        return {f"{_DRAFT}.{name}": option for name, option in options.items()} | taken_over
    of_draft = {option_name(_DRAFT, name): f"{_DRAFT}.{name}" for name in fields_of(DraftConfig)}
    is_server = options.keys() >= fields_of(ServerConfig).keys()
    of_server = fields_of(ServerConfig) if is_server else {}
    return {
        of_draft.get(name) or (f"server.{name}" if option.name in of_server else name): option
        for name, option in options.items()
    }


class _FileReader:
    """Reads one file for one command."""

    def __init__(self, command: str, places: Mapping[str, Mapping[str, Any]], path: Path) -> None:
        self.command, self._path = command, path
        self._places = places[command]
        self._of_all = {place for each in places.values() for place in each}

    def defaults(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        """Default values by option name."""
        found: dict[str, Any] = {}
        for place, key, value in self._entries(layer):
            option = self._places.get(place)
            if option is None and self._is_for_others(place):
                continue
            if option is None:
                raise ValueError(f"--config {self._path}: {self._unknown(place, key)}")
            if option.name == "speculative_config":
                found = {**draft_settings(value), **found}
            elif value is not None:
                found[option.name] = _as_typed(value, is_list=option.multiple)
        return found

    def _entries(self, layer: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Place, key and value. Sections come last: the draft's own settings override inherited ones."""
        owners = {_DRAFT: layer.get(_DRAFT), "server": layer.get("server")}
        for key, value in layer.items():
            if key not in owners:
                yield str(key).replace("-", "_"), str(key), value
        if isinstance(owners[_DRAFT], str):
            owners[_DRAFT] = {"model": owners[_DRAFT]}
        for owner, section in owners.items():
            if not isinstance(section or {}, Mapping):
                raise ValueError(
                    f"--config {self._path}: {owner!r} is a section, with `name: value` on lines below it"
                )
            for key, value in (section or {}).items():
                yield f"{owner}.{key}".replace("-", "_"), f"{owner}.{key}", value

    def _is_for_others(self, place: str) -> bool:
        """Whether another command reads this key."""
        return place in self._of_all and ("." in place or self.command == _DRAFT)

    def _unknown(self, place: str, key: str) -> str:
        """The error for an unknown key; suggests keys that differ in their section too."""
        named = {each.rpartition(".")[2]: each for each in self._places}
        named |= {each.replace(".", "_"): each for each in self._places}
        near = difflib.get_close_matches(place.replace(".", "_"), named, n=1)
        hint = (
            f"did you mean {named[near[0]]!r}?"
            if near
            else f"`ssd {self.command} --help-all` lists what it takes"
        )
        return f"{key!r} is no option of `ssd {self.command}`: {hint}"


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
        raise ValueError(f"--config {path}: name it .yaml or .toml, so that its format is known")
    if not isinstance(content or {}, Mapping):
        raise ValueError(f"--config {path}: write `name: value`, one option a line")
    return content or {}


def _as_typed(value: Any, *, is_list: bool) -> Any:
    """A list for an option that takes one value, such as cores, is joined with commas."""
    if is_list:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value
