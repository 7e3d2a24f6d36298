"""A run's manifest: its settings, which a resumed run must share, its sessions, models and cases.

Plain values, read and written by msgspec. Describes how two runs differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings that determine the measurements. All sessions of a run share them."""

    model: str
    draft: str | None
    cases: Sequence[str]
    """Labels, in the order in which they first took turns."""
    datasets: Sequence[str]
    num_prompts: int
    first_prompt: int
    max_tokens: int
    seed: int
    deterministic: bool
    prompts: Mapping[str, str]
    """A digest of the prompts' text for each data set."""
    engine: Mapping[str, Any]
    """Further engine settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Time, code and machine of a session. A run that was interrupted has several sessions."""

    started: str
    commit: str | None
    versions: Mapping[str, str]
    hardware: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    name: str
    path: str
    num_bytes: int
    num_parameters: int
    """Number of weights that a row is multiplied by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFacts:
    """The settings that the engine derived from a case."""

    label: str
    lookahead: int
    draft_form: str | None
    draft_width: int
    draft_parameters: int
    num_devices: int
    draft_guesses: int = 1
    """Guesses per position in a verification: more than one with trees."""
    draft_lookup: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    settings: RunSettings
    sessions: Sequence[Provenance]
    target: ModelFacts | None = None
    draft: ModelFacts | None = None
    cases: Sequence[CaseFacts] = ()
    kind_of_device: str = "core"


def differences(ours: RunSettings, theirs: RunSettings, *, without: Sequence[str] = ()) -> list[str]:
    """`max_tokens is 96 there and 64 here`, for each setting that differs."""
    listed = []
    for field in fields(RunSettings):
        here, there = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name not in without and here != there:
            difference = f"{field.name} is {_short(there)} there and {_short(here)} here"
            listed.append("the prompts' text differs" if field.name == "prompts" else difference)
    return listed


def places_apart(was: Provenance, now: Provenance) -> list[str]:
    """Differences between two sessions: commit, versions, machine."""
    listed = [
        f"{name} was {was.hardware.get(name)!r}, is {now.hardware.get(name)!r}"
        for name in now.hardware
        if was.hardware.get(name) != now.hardware.get(name) and name != "system"
    ]
    if was.commit != now.commit:
        listed.append(f"commit was {was.commit or 'unknown'}, is {now.commit or 'unknown'}")
    return listed + [
        f"{name} was {was.versions.get(name)}, is {version}"
        for name, version in now.versions.items()
        if was.versions.get(name) != version
    ]


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "empty"
    return str(value)
