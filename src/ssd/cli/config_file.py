"""`--config FILE` and `--speculative-config JSON`: settings from elsewhere, under those of the command line.

Knows files and vLLM's names for drafting. What is read becomes the defaults of the command's options, so
types, ranges and help stay those of the options, and whatever the command line says wins. A key that is
no option of the command is refused by name; a section named after a command is for that command alone:

    model: Qwen/Qwen3-8B
    max-model-len: 8192
    chat:
      temperature: 0.7
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ssd.cli.errors import user_errors

_VLLM_KEYS = {"model": "draft", "num_speculative_tokens": "lookahead", "method": "mode"}
_VLLM_METHODS = {"draft_model": "sd", "ssd": "ssd"}
_NEVER_IN_FILES = ("--config", "--help", "--help-all")


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
    if given.get("draft_tensor_parallel_size", 1) != 1:
        raise ValueError("draft_tensor_parallel_size must be 1: a draft runs on one device")
    unknown = [key for key in given if key not in (*_VLLM_KEYS, "draft_tensor_parallel_size")]
    if unknown:
        raise ValueError(
            f"--speculative-config: {unknown[0]!r} has no meaning here; known are {', '.join(_VLLM_KEYS)}"
        )
    settings = {_VLLM_KEYS[key]: value for key, value in given.items() if key in _VLLM_KEYS}
    if "mode" in settings:
        settings["mode"] = _mode_of(settings["mode"])
    return settings


def _mode_of(method: object) -> str:
    if method not in _VLLM_METHODS:
        known = " or ".join(_VLLM_METHODS)
        raise ValueError(f"--speculative-config: method {method!r} is not supported: use {known}")
    return _VLLM_METHODS[str(method)]


def _defaults_from(path: Path, context: typer.Context) -> dict[str, Any]:
    content = _read(path)
    sections = _commands_above(context)
    # `draft: MODEL` is an option, though there is a command of that name: a section has keys of its own.
    of_commands = {
        key: value or {}
        for key, value in content.items()
        if key in sections and isinstance(value or {}, Mapping)
    }
    flat = {key: value for key, value in content.items() if key not in of_commands}
    flat |= of_commands.get(str(context.info_name), {})
    options = _options_of(context)
    defaults: dict[str, Any] = {}
    for key, value in flat.items():
        name = str(key).replace("-", "_")
        if name == "speculative_config":
            defaults = {**draft_settings(value), **defaults}
        elif name not in options:
            raise ValueError(_unknown_key(path, str(key), sorted(options), str(context.info_name)))
        elif value is not None:
            defaults[options[name].name] = _as_typed(value, is_list=options[name].multiple)
    return defaults


def _commands_above(context: typer.Context) -> set[str]:
    """Names of all commands, those of groups (`bench run`) included: what a section may be called."""
    found: set[str] = set()
    above = context.parent
    while above is not None:
        found |= set(getattr(above.command, "commands", {}))
        above = above.parent
    return found


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
        content = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} cannot be read: {' '.join(str(error).split())}") from error
    if path.suffix not in (".yaml", ".yml", ".toml"):
        raise ValueError(f"--config {path}: name it .yaml or .toml, so that it can be told which it is")
    if not isinstance(content or {}, Mapping):
        raise ValueError(f"--config {path}: write `name: value`, one option a line")
    return content or {}


def _options_of(context: typer.Context) -> dict[str, Any]:
    """By every long name, as a file may spell it."""
    return {
        flag.removeprefix("--").replace("-", "_"): parameter
        for parameter in context.command.params
        for flag in parameter.opts
        if flag.startswith("--") and flag not in _NEVER_IN_FILES
    }


def _unknown_key(path: Path, key: str, known: list[str], command: str) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`ssd {command} --help-all` lists what it takes"
    return f"--config {path}: {key!r} is no option of `ssd {command}`: {hint}"


def _as_typed(value: Any, *, is_list: bool) -> Any:
    """A list for an option that is given once, such as cores, is what one writes with commas."""
    if is_list:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value
