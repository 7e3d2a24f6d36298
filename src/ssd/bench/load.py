"""Load on servers: who is asked, how hard, and what came back. Plain values and the folder that keeps them.

Two kinds of load: `users`, each of whom asks again as soon as it has its answer (a closed loop), and `rate`,
requests a second that arrive when they like (Poisson), whether or not the server keeps up.
"""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from ssd.bench.folder import add_line, drop_cut_line, read_lines, write_whole
from ssd.bench.turns import in_turn

Kind = Literal["users", "rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server of OpenAI's API as it is asked: two may be one server, asked in different ways."""

    name: str
    url: str
    model: str
    devices: float = 1
    """GPUs or cores that are kept for it."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request beside the usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    kind: Kind
    value: float

    def __str__(self) -> str:
        what = ("user" if self.value == 1 else "users") if self.kind == "users" else "requests/s"
        return f"{self.value:g} {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What decides the measurements; a run that goes on must share it."""

    endpoints: Sequence[Endpoint]
    levels: Sequence[Level]
    datasets: Sequence[str]
    prompts: str
    """A digest of their text."""
    num_prompts: int
    max_tokens: int
    requests: int
    """Of each user of a level."""
    rate_requests: int
    """Of a level with a rate, in all."""
    max_seconds: float
    rounds: int

    def num_requests(self, level: Level) -> int:
        return int(self.requests * level.value) if level.kind == "users" else self.rate_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request, in seconds since the first of its level began."""

    began: float
    first_token: float
    last_token: float
    ended: float
    num_tokens: int

    @property
    def wait(self) -> float:
        """Until the first token."""
        return self.first_token - self.began

    @property
    def per_token(self) -> float | None:
        """Of the tokens after the first."""
        later = self.num_tokens - 1
        return (self.last_token - self.first_token) / later if later > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRecord:
    """One endpoint at one level, once."""

    endpoint: str
    level: Level
    round: int
    answers: Sequence[Answered]
    num_failed: int
    first_failure: str | None = None
    num_unfinished: int = 0
    """Still running when the time was over."""


class LoadFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._settings, self._records = path / "settings.json", path / "levels.jsonl"

    def begin(self, settings: LoadSettings) -> None:
        """Starts the run, or goes on with it; a folder that holds another run is refused."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._settings.exists():
            unlike = _differences(settings, self.settings())
            if unlike:
                raise ValueError(
                    f"{self.path} holds another run, unlike in {', '.join(unlike)}: name another with --run"
                )
        write_whole(self._settings, settings)
        drop_cut_line(self._records)

    def settings(self) -> LoadSettings:
        try:
            return msgspec.json.decode(self._settings.read_bytes(), type=LoadSettings)
        except (OSError, msgspec.DecodeError) as error:
            raise ValueError(f"{self.path} holds no run of `ssd bench serve` ({error})") from error

    def add(self, record: LevelRecord) -> None:
        add_line(self._records, record)

    def records(self) -> list[LevelRecord]:
        return read_lines(self._records, LevelRecord)


def first_model(url: str, api_key: str | None) -> str:
    """What a server calls its model, where nobody said."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=30
        ) as got:
            return str(json.load(got)["data"][0]["id"])
    except (OSError, ValueError, LookupError) as error:
        raise ValueError(f"{url} names no model ({error}): is it running? Say --model otherwise") from error


def turns(settings: LoadSettings) -> list[tuple[Endpoint, Level, int]]:
    """All of a run, in order: endpoints take turns at each level, in another order in each round of it."""
    return [
        (endpoint, level, number)
        for number in range(settings.rounds)
        for index, level in enumerate(settings.levels)
        for endpoint in in_turn(settings.endpoints, number + index)
    ]


def _differences(ours: LoadSettings, theirs: LoadSettings) -> list[str]:
    here, there = msgspec.to_builtins(ours), msgspec.to_builtins(theirs)
    return [each.name for each in fields(LoadSettings) if here[each.name] != there[each.name]]
