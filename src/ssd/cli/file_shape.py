"""Where each option stands in a settings file: the engine's at the top, others under their owner.

    model: Qwen/Qwen3-8B
    draft:
      model: Qwen/Qwen3-0.6B
      width: 12
    server:
      port: 8000

Knows owners, and what `ssd draft` takes over from the engine. A file of 0.1, which had but one level, is
refused with the lines to write instead. Does not know values: their types and ranges are the options'.
"""

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import yaml

from ssd.cli.server_options import ServerOptions
from ssd.config.draft import DRAFT_SETTINGS

Place = tuple[str, str]
"""Owner and setting; no owner is the engine, or the command itself."""

_NEVER_IN_FILES = ("--config", "--help", "--help-all")
_SERVER_SETTINGS = [field.name for field in dataclasses.fields(ServerOptions)]
_TAKEN_OVER = ("dtype", "kv_cache_bytes", "max_num_seqs", "hf_cache")
"""What a draft has of its engine, if it says nothing else itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """A key of 0.1, and where it stands now."""

    key: str
    value: Any
    place: Place


class FileShape:
    """The places of one command's options."""

    def __init__(self, context: typer.Context) -> None:
        self.command = str(context.info_name)
        commands = dict(_commands_of(context.find_root().command))
        self.sections = {name.rpartition(" ")[2] for name in commands} - {"draft"}
        self._options = _options_of(context.command)
        self._of_draft_command = set(_options_of(commands.get("draft")))
        others = [each for name, each in commands.items() if name != "draft"]
        self._of_others = {name for each in others for name in _options_of(each)}
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
        owner, _, setting = name.partition("_")
        if owner == "draft" and (not setting or setting in DRAFT_SETTINGS):
            return "draft", setting or "model"
        is_server = name in _SERVER_SETTINGS and set(_SERVER_SETTINGS) <= set(self._options)
        return ("server", name) if is_server else ("", name)

    def is_for_others(self, place: Place) -> bool:
        """Whether other commands read this from the same file."""
        owner, name = place
        if owner == "draft":
            return name in DRAFT_SETTINGS or name in self._of_draft_command
        if owner == "server":
            return not any(each == "server" for each, _ in self._places)
        return self.command == "draft" and name in self._of_others and _owner_since(name) is None

    def place_since(self, name: str) -> Place | None:
        """Where something stands now that 0.1 had at the top; None: it is not known at all."""
        return self.place_of(self._options[name].name) if name in self._options else _owner_since(name)

    def with_company(self, moved: list[Moved], layer: Mapping[str, Any]) -> list[Moved]:
        """A file of 0.1 for `ssd draft` had the draft's model where the engine's is now, and more."""
        if self.command != "draft" or "draft" in layer:
            return moved
        names = {key: str(key).replace("-", "_") for key in layer}
        company = [
            Moved(key, layer[key], ("draft", name))
            for key, name in names.items()
            if name in self._options and key not in [each.key for each in moved]
        ]
        return [*company, *moved]

    def unknown(self, place: Place, key: str) -> str:
        owner, name = place
        known = {setting: setting for each, setting in self._places if each == owner}
        if not owner:
            known = {each: ".".join(filter(None, self.place_of(each))) for each in self._options}
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"`ssd {self.command} --help-all` lists what it takes"
        if near:
            hint = f"did you mean {known[near[0]]!r}?"
        return f"{f'{owner}.{key}' if owner else key!r} is no option of `ssd {self.command}`: {hint}"


def _owner_since(name: str) -> Place | None:
    """Of what was never the engine's, whichever command is asked; None: it stands where it stood."""
    setting = name.removeprefix("draft_")
    if setting in DRAFT_SETTINGS and (setting != name or name == "growth"):
        return "draft", setting
    return ("server", name) if name in _SERVER_SETTINGS else None


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


def refusal_of_old(path: Path, layer: Mapping[str, Any], moved: list[Moved], section: str = "") -> str:
    """The lines to change, as they are and as they have to be; `section` is that of a command, if any."""
    old: dict[str, Any] = {}
    new: dict[str, dict[str, Any]] = {}
    for owner in dict.fromkeys(each.place[0] for each in moved):
        said = layer.get(owner)
        if said is not None and not isinstance(said, Mapping):
            old[owner], said = said, {"model": said}
        new[owner] = dict(said or {})
    for each in moved:
        owner, name = each.place
        old[each.key] = new[owner][name.replace("_", "-")] = each.value
    return (
        f"--config {path} is of 0.1: since 0.2 settings stand under their owner. Instead of\n\n"
        f"{_shown(old, path, section)}\n\nwrite\n\n{_shown(new, path, section)}\n"
    )


def _shown(content: dict[str, Any], path: Path, section: str) -> str:
    if section:
        content = {section: content}
    if path.suffix == ".toml":
        lines = list(_toml_lines(content))
    else:
        lines = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).splitlines()
    return "\n".join(f"    {line}" for line in lines)


def _toml_lines(content: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """With dots, since whatever follows a [section] would belong to it."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, f"{above}{key}.")
        else:
            yield f"{above}{key} = {json.dumps(value, ensure_ascii=False)}"
