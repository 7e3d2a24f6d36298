"""Model names as users write them: a folder, a GGUF file, or a name on the hub. Downloads nothing.

Imports nothing heavy, so that a mistyped path is refused before torch is imported.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?P<file>(?:/[\w.-]+)*/[\w.-]+\.gguf)?"
    r"(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, slots=True)
class HubName:
    repo: str
    file: str | None
    revision: str | None


def parse_hub_name(model: str) -> HubName | None:
    """None if this cannot be a name on the hub."""
    match = _NAME.fullmatch(model)
    if match is None or (match["file"] is None and match["repo"].endswith(".gguf")):
        return None
    file = match["file"]
    return HubName(match["repo"], file.removeprefix("/") if file else None, match["revision"])


def path_or_hub_name(model: str) -> Path | HubName:
    """The path of a model on this machine, or its name on the hub; ValueError if it can be neither."""
    path = Path(model).expanduser()
    if path.exists():
        return path
    name = parse_hub_name(model)
    if name is None:
        raise ValueError(
            f"no model at {model}: name a folder with config.json, a .gguf file, or a model on the hub "
            "such as Qwen/Qwen3-0.6B"
        )
    return name
