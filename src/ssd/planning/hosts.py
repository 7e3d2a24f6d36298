"""What hosts cost beside forwards: our own programs, by how many sequences they look after.

Measured, not from a data sheet: `data/hosts.toml` has the figures with the commands that gave them; a file of
the same form takes its place.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class HostCost:
    fixed: float
    """Seconds of a step, whatever is in it."""
    per_sequence: float
    source: str = ""
    """What was run to measure it."""

    def seconds(self, sequences: int) -> float:
        return self.fixed + self.per_sequence * sequences


@dataclass(frozen=True, slots=True)
class Hosts:
    draft: HostCost
    """Beside each step of a draft."""
    target: HostCost
    """Between two verifications."""


def measured_hosts(path: str | None = None) -> Hosts:
    """Of a file, or those that come with the package."""
    try:
        text = (
            files("ssd.planning").joinpath("data/hosts.toml").read_text()
            if path is None
            else Path(path).read_text()
        )
        rows = tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"{path}: {error}: write [draft] and [target], each with fixed and per_sequence"
        ) from error
    return Hosts(_cost("draft", rows), _cost("target", rows))


def _cost(name: str, rows: Mapping[str, Any]) -> HostCost:
    row = rows.get(name, {})
    for field in ("fixed", "per_sequence"):
        value = row.get(field)
        if not isinstance(value, int | float) or value < 0:
            raise ValueError(
                f"[{name}] {field}={value!r}: give milliseconds, as src/ssd/planning/data/hosts.toml does"
            )
    return HostCost(row["fixed"] * 1e-3, row["per_sequence"] * 1e-3, str(row.get("source", "")))
