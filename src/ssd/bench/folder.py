"""A run's folder: manifest.json, records.jsonl, forwards.jsonl and ties.jsonl.

Knows files and their types. An incomplete last line, left by a killed run, is dropped and measured again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from ssd.bench.manifest import Manifest, Provenance, differences, places_apart
from ssd.bench.records import CaseRecord, Forwards, Tie

_Line = TypeVar("_Line")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest = path / "manifest.json"
        self._files = {
            CaseRecord: path / "records.jsonl",
            Forwards: path / "forwards.jsonl",
            Tie: path / "ties.jsonl",
        }

    def begin(self, manifest: Manifest) -> None:
        """Starts or resumes a run; ValueError if the folder contains another run.

        A run without records is replaced, so that mistaken settings can be corrected.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        before = self.manifest() if self._manifest.exists() else None
        if before is not None and self.records():
            unlike = differences(manifest.settings, before.settings)
            if unlike:
                raise ValueError(
                    f"{self.path} holds another run: {'; '.join(unlike)}. "
                    "Name another folder with --run, or use the same settings"
                )
        else:
            self._write(replace(manifest, sessions=[]))
        for file in self._files.values():
            drop_cut_line(file)

    def refuse_elsewhere(self, now: Provenance) -> None:
        """ValueError if the existing records come from other code or another machine."""
        before = self.manifest().sessions
        apart = places_apart(before[-1], now) if before else []
        if apart:
            raise ValueError(
                f"since {self.path} was begun, things changed: {'; '.join(apart)}. "
                "Name another folder with --run, or continue anyway with --mixed"
            )

    def begin_session(self, manifest: Manifest) -> None:
        """Adds a session to the manifest; called when the models are loaded."""
        self._write(replace(manifest, sessions=[*self.manifest().sessions, *manifest.sessions]))

    def manifest(self) -> Manifest:
        try:
            return msgspec.json.decode(self._manifest.read_bytes(), type=Manifest)
        except FileNotFoundError as error:
            raise ValueError(f"{self.path} holds no run: `ssd bench run --run DIR` makes one") from error
        except msgspec.DecodeError as error:
            raise ValueError(
                f"{self.path} holds no run of `ssd bench run` that this version reads ({error}); a run of "
                "`python -m benchmarks.peers` has its own report.md"
            ) from error

    def add(self, lines: Sequence[CaseRecord | Forwards | Tie]) -> None:
        for line in lines:
            add_line(self._files[type(line)], line)

    def records(self) -> list[CaseRecord]:
        """All records; of repeated measurements the last one."""
        records = read_lines(self._files[CaseRecord], CaseRecord)
        return list({(each.dataset, each.prompt, each.case): each for each in records}.values())

    def forwards(self) -> list[Forwards]:
        return read_lines(self._files[Forwards], Forwards)

    def ties(self) -> list[Tie]:
        return read_lines(self._files[Tie], Tie)

    def _write(self, manifest: Manifest) -> None:
        write_whole(self._manifest, manifest)


def write_whole(file: Path, content: object) -> None:
    """Writes indented JSON atomically."""
    whole = file.with_suffix(".new")
    whole.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    whole.replace(file)


def add_line(file: Path, line: object) -> None:
    with file.open("ab") as opened:
        opened.write(msgspec.json.encode(line) + b"\n")


def drop_cut_line(file: Path) -> None:
    if file.exists():
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            file.write_bytes(whole)


def read_lines(file: Path, kind: type[_Line]) -> list[_Line]:
    if not file.exists():
        return []
    whole = file.read_bytes().rpartition(b"\n")[0]
    try:
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} holds a line that no run of this version wrote ({error})") from error
