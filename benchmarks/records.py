"""A file of results, one a line: what was run, where and when; what is there is not run again."""

import datetime
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Record:
    path: Path
    run: Mapping[str, Any]
    """What tells one run's cases from another's."""

    def find(self, case: str) -> dict[str, Any] | None:
        return next((each for each in self.lines() if each["case"] == case and each["run"] == self.run), None)

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def add(self, case: str, found: Mapping[str, Any]) -> None:
        line = {"case": case, "run": dict(self.run), **found, "at": where_and_when()}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def where_and_when() -> dict[str, str]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude", "*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
        "cpu": _cpu(),
        "commit": commit.stdout.strip(),
    }


def _cpu() -> str:
    """Its name, and the instructions that matter."""
    try:
        lines = dict(
            line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
        )
    except OSError:
        return platform.processor()
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    flags = set(fields.get("flags", "").split())
    known = [name for name in ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2") if name in flags]
    return " ".join([fields.get("model name", platform.processor()), *known[:2]])
