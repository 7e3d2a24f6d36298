"""Where each option stands in a settings file: the engine's at the top, others under their owner.

    model: Qwen/Qwen3-8B
    draft:
      model: Qwen/Qwen3-0.6B
      width: 12
    server:
      port: 8000

Knows owners, and what `ssd draft` takes over from the engine. Does not know values: their types and ranges
are the options'.
"""

import dataclasses
import difflib
from collections.abc import Container, Iterator, Mapping
from typing import Any

import typer

from ssd.cli.server_options import ServerOptions
from ssd.config.draft import DRAFT_SETTINGS

Place = tuple[str, str]
"""Owner and setting; no owner is the engine, or the command itself."""

_NEVER_IN_FILES = ("--config", "--help", "--help-all")
_SERVER_SETTINGS = [field.name for field in dataclasses.fields(ServerOptions)]
_TAKEN_OVER = ("dtype", "kv_cache_bytes", "max_num_seqs", "hf_cache")
"""What a draft has of its engine, if it says nothing else itself."""


class FileShape:
    """The places of one command's options."""

    def __init__(self, context: typer.Context) -> None:
        self.command = str(context.info_name)
        commands = dict(_commands_of(context.find_root().command))
        self.sections = {name.rpartition(" ")[2] for name in commands} - {"draft"}
        self._options = _options_of(context.command)
        self._of_draft_command = set(_options_of(commands.get("draft")))
        others = [each for name, each in commands.items() if name != "draft"]
        self._of_others = {name for each in others for name in _at_the_top(_options_of(each))}
        self._places = dict(self._all_places())
        if self.command == "draft":
            taken_over = (name for name in _TAKEN_OVER if name in self._options)
            self._places |= {("", name): self._options[name] for name in taken_over}

    def _all_places(self) -> Iterator[tuple[Place, Any]]:
        for name, option in self._options.items():
            owner, setting = self.place_of(option.name)
            yield (owner, setting if name == option.name else name), option

    def option_at(self, place: Place) -> Any:
        """None: nothing of this command stands there."""
        return self._places.get(place)

    def place_of(self, name: str) -> Place:
        """Of an option, by its name on the command line."""
        if self.command == "draft":
            return "draft", name
        return _place_among(name, self._options)

    def is_for_others(self, place: Place) -> bool:
        """Whether other commands read this from the same file."""
        owner, name = place
        if owner == "draft":
            return name in DRAFT_SETTINGS or name in self._of_draft_command
        if owner == "server":
            return not any(each == "server" for each, _ in self._places)
        return self.command == "draft" and name in self._of_others

    def unknown(self, place: Place, key: str) -> str:
        owner, name = place
        known = {setting: setting for each, setting in self._places if each == owner}
        if not owner:
            places = {each: self.place_of(option.name) for each, option in self._options.items()}
            known = {each: ".".join(filter(None, place)) for each, place in places.items()}
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"`ssd {self.command} --help-all` lists what it takes"
        if near:
            hint = f"did you mean {known[near[0]]!r}?"
        return f"{f'{owner}.{key}' if owner else key!r} is no option of `ssd {self.command}`: {hint}"


def _place_among(name: str, options: Container[str]) -> Place:
    """Of an option of a command that has these."""
    owner, _, setting = name.partition("_")
    if owner == "draft" and (not setting or setting in DRAFT_SETTINGS):
        return "draft", setting or "model"
    is_server = name in _SERVER_SETTINGS and all(each in options for each in _SERVER_SETTINGS)
    return ("server", name) if is_server else ("", name)


def _at_the_top(options: Mapping[str, Any]) -> Iterator[str]:
    """Those that no owner has."""
    for name, option in options.items():
        owner, _ = _place_among(option.name, options)
        if not owner:
            yield name


def _commands_of(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """All commands with their names, those of groups (`bench run`) included."""
    for name, each in getattr(command, "commands", {}).items():
        yield f"{above}{name}", each
        yield from _commands_of(each, f"{above}{name} ")


def _options_of(command: Any) -> dict[str, Any]:
    """By name and by every long flag, as a file may spell them."""
    found: dict[str, Any] = {}
    for parameter in getattr(command, "params", ()):
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        if flags and not set(flags) & set(_NEVER_IN_FILES):
            found |= {flag.removeprefix("--").replace("-", "_"): parameter for flag in flags}
            found[parameter.name] = parameter
    return found
