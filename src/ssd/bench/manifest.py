"""What a run is: its settings, which a resumed run must share, and where and with what it ran.

Plain values, read and written by msgspec. Knows how to say in which settings two runs differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What decides the measurements. Two sessions of one run, or two runs compared, share it."""

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
    """Of each data set, a digest of the prompts' text."""
    engine: Mapping[str, Any]
    """Engine settings that were said beside these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Of one session: a run that was interrupted has several."""

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
    """Weights that a row is multiplied by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFacts:
    """What the engine made of a case."""

    label: str
    lookahead: int
    draft_form: str | None
    draft_width: int
    draft_parameters: int
    num_devices: int
    draft_guesses: int = 1
    """Of each place, how many a verification may hold: more than one where it takes trees."""
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
    """`max_tokens is 96 there and 64 here`, for each setting in which two runs are unlike."""
    found = []
    for field in fields(RunSettings):
        here, there = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name not in without and here != there:
            what = f"{field.name} is {_short(there)} there and {_short(here)} here"
            found.append("the prompts' text differs" if field.name == "prompts" else what)
    return found


def places_apart(was: Provenance, now: Provenance) -> list[str]:
    """In what two sessions differ beside their time: source, versions, machine."""
    found = [
        f"{name} was {was.hardware.get(name)!r}, is {now.hardware.get(name)!r}"
        for name in now.hardware
        if was.hardware.get(name) != now.hardware.get(name) and name != "system"
    ]
    if was.commit != now.commit:
        found.append(f"commit was {was.commit or 'unknown'}, is {now.commit or 'unknown'}")
    return found + [
        f"{name} was {was.versions.get(name)}, is {version}"
        for name, version in now.versions.items()
        if was.versions.get(name) != version
    ]


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "empty"
    return str(value)
