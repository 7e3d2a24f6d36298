"""What a run among peers keeps: its settings, who took part, a line for every text. Plain values, files.

A line that was cut off when a run was killed is dropped: it is measured again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import msgspec

from ssd.bench.folder import add_line, drop_cut_line, read_lines, write_whole
from ssd.bench.manifest import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersSettings:
    """What decides the measurements; a run that goes on must share it."""

    model: str
    draft: str | None
    dtype: str
    peers: Sequence[str]
    ssd_cases: Sequence[str]
    """None: this engine itself takes no part."""
    peer_cases: Sequence[str]
    target_cores: Sequence[int]
    draft_cores: Sequence[int]
    """Of this engine; its peers have both."""
    datasets: Sequence[str]
    num_prompts: int
    first_prompt: int
    max_tokens: int
    prompts: Mapping[str, str]
    """Of each data set, a digest of the prompts' text."""
    turns: int = 1
    """How often everyone writes each text."""
    compiles: bool = True
    """Whether vLLM does, which takes minutes at a first start and makes it faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersManifest:
    settings: PeersSettings
    sessions: Sequence[Provenance]
    engines: Mapping[str, str]
    """By peer, what answers under its name: an interpreter or a program with its weights, or an address."""
    waves: Sequence[Sequence[str]] = ()
    """Names of the workers that were loaded together. Ours are in every wave."""
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By worker. One that has another later is refused: there is one for all its texts."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Peers that did not take part, and why."""
    idle: Mapping[str, float] = field(default_factory=dict)
    """By worker, cores that it kept busy while it had nothing to do; of those that are not stopped then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """One text of one peer."""

    wave: int
    sitting: int
    """Counted from 0; a run that goes on another day, or an hour later, is in another one."""
    dataset: str
    prompt: int
    peer: str
    case: str
    tokens: Sequence[int]
    first_token: float
    """Seconds from the request to its first token."""
    seconds_per_token: float
    """Mean of the tokens after those that came first."""
    turn: int = 0
    """Of those in which this text was written again."""

    @property
    def rate(self) -> float:
        return 1 / self.seconds_per_token


class PeersFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest, self._records = path / "manifest.json", path / "records.jsonl"

    def begin(self, manifest: PeersManifest) -> PeersManifest:
        """Starts the run, or goes on with it; a folder that holds another run is refused."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._manifest.exists():
            before = self.manifest()
            unlike = _differences(manifest.settings, before.settings) or self._others(manifest, before)
            if unlike:
                raise ValueError(f"{self.path} holds another run ({unlike}): name another folder with --run")
            manifest = replace(before, engines={**before.engines, **manifest.engines})
        drop_cut_line(self._records)
        self.write(manifest)
        return manifest

    def _others(self, ours: PeersManifest, theirs: PeersManifest) -> str:
        """Of those who have texts here already: who answers now by something else."""
        measured = dict.fromkeys(each.peer for each in self.records())
        known = {name: theirs.engines[name] for name in measured if name in theirs.engines}
        return ", ".join(
            f"{name} was {engine}, not {ours.engines[name]}"
            for name, engine in known.items()
            if ours.engines.get(name, engine) != engine
        )

    def write(self, manifest: PeersManifest) -> None:
        write_whole(self._manifest, manifest)

    def manifest(self) -> PeersManifest:
        try:
            return msgspec.json.decode(self._manifest.read_bytes(), type=PeersManifest)
        except FileNotFoundError as error:
            raise ValueError(f"{self.path} holds no run among peers") from error
        except msgspec.DecodeError as error:
            raise ValueError(f"{self._manifest} is no manifest of a run among peers ({error})") from error

    def add(self, record: PeerRecord) -> None:
        add_line(self._records, record)

    def records(self) -> list[PeerRecord]:
        return read_lines(self._records, PeerRecord)


def _differences(ours: PeersSettings, theirs: PeersSettings) -> str:
    plain = (msgspec.to_builtins(ours), msgspec.to_builtins(theirs))
    names = [each.name for each in fields(PeersSettings) if plain[0][each.name] != plain[1][each.name]]
    return ", ".join(
        "the prompts' text" if name == "prompts" else f"{name} {plain[1][name]}, not {plain[0][name]}"
        for name in names
    )
