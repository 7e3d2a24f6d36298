"""Draws pictures of the pages from what was recorded.

    python -m benchmarks.pictures                      # into docs/pictures
    python -m benchmarks.pictures --folder pictures

Medians with their intervals, read from the tables of benchmarks/RESULTS.md and from docs/records. Knows no
figure itself. A test draws them anew and compares.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks import dashboard_pictures, network_picture
from benchmarks.flags import parser
from benchmarks.tree_turns import CELL, rate
from ssd.bench.statistics import Estimate, paired_ratio

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/RESULTS.md"
RECORDS = ROOT / "docs/records"
FLAGS: dict[str, object] = {"folder": str(ROOT / "docs/pictures")}
_LEFT, _PLOT, _NUMBERS, _PITCH, _TOP = 16, 270, 130, 42, 44
"""Narrow, so that it can be read on a telephone: a row's label is above its line."""
_COLOUR, _REST = "#2f6f9f", "#888"


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of a picture."""

    label: str
    value: float
    low: float
    high: float
    numbers: str
    """As it is written."""
    is_ours: bool = True


def pictures() -> Mapping[str, str]:
    """SVG by file name."""
    return {
        "speed.svg": draw("tokens a second of one user (95 %)", list(_modes()), mark=None),
        "load.svg": draw("ssd over ar, by users at the same time (95 %)", list(_load()), mark=1.0),
        "trees.svg": draw("trees over chains, tokens a second (95 %)", list(_trees()), mark=1.0),
        "network.svg": network_picture.draw(_lines("network")),
        **dict(_dashboards()),
    }


def _dashboards() -> Iterator[tuple[str, str]]:
    panels = _lines("dashboards")
    for name, file in (("dashboard.svg", "grafana.json"), ("dashboard-pool.svg", "grafana-pool.json")):
        yield name, dashboard_pictures.draw([each for each in panels if each["dashboard"] == file])


def _modes() -> Iterator[Interval]:
    names = {
        "ar": "target alone, one core",
        "ar+allcores": "target alone, both cores",
        "sd4": "in turns, one core",
        "sd5+int8+allcores": "in turns, both cores, int8 draft",
        "ssd": "ahead, a core each",
        "ssd+int8": "ahead, a core each, int8 draft",
    }
    found = {row[0].strip("`"): row[1] for row in _table("A draft that works ahead")}
    for case, label in names.items():
        yield _read(label, found[case], is_ours=case.startswith("ssd"))


def _load() -> Iterator[Interval]:
    for users, _, _, ratio, *_ in _table("Under load"):
        yield _read(f"{users} user{'s' * (users != '1')}", ratio)


def _trees() -> Iterator[Interval]:
    for file, machine in (("tree_turns", "no AMX"), ("tree_turns_amx", "AMX")):
        lines = _lines(file)
        for batch in sorted({line["batch"] for line in lines}):
            mine = [line for line in lines if line["batch"] == batch]
            cells = len({tuple(line[name] for name in CELL) for line in mine})
            ratio = paired_ratio(
                [rate(line, "tree") for line in mine], [rate(line, "chain") for line in mine]
            )
            yield _of(f"{machine}, batch {batch} ({cells} cells)", ratio)


def _lines(record: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDS / f"{record}.jsonl").read_text().splitlines()]


def _of(label: str, estimate: Estimate) -> Interval:
    assert estimate.interval is not None, f"too few values: {label}"
    return Interval(label, estimate.value, *estimate.interval, numbers=str(estimate))


def _table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without the head."""
    section = RESULTS.read_text().split(f"# {heading}\n")[1]
    lines = section[section.index("\n|") :].strip().split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _read(label: str, text: str, *, is_ours: bool = True) -> Interval:
    value, low, high = map(float, re.findall(r"[\d.]+", text))
    return Interval(label, value, low, high, text, is_ours)


def draw(title: str, rows: Sequence[Interval], *, mark: float | None) -> str:
    """A dot for each median, a line for its interval; `mark` is a value that divides better from worse."""
    least = 0.0 if mark is None else min(0.5, *(row.low for row in rows))
    most = max(row.high for row in rows)
    width, height = _LEFT + _PLOT + _NUMBERS, _TOP + _PITCH * len(rows) + 14

    def x(value: float) -> float:
        return round(_LEFT + _PLOT * (value - least) / (most - least), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    if mark is not None:
        parts += [
            f'<line x1="{x(mark)}" x2="{x(mark)}" y1="{_TOP - 2}" y2="{height - 14}" stroke="#bbb"/>',
            f'<text x="{x(mark)}" y="{height - 3}" text-anchor="middle" fill="#666">{mark:g}</text>',
        ]
    for place, row in enumerate(rows):
        y, colour = _TOP + _PITCH * place + 28, _COLOUR if row.is_ours else _REST
        parts += [
            f'<text x="{_LEFT}" y="{y - 12}">{escape(row.label)}</text>',
            f'<path d="M{x(row.low)},{y}H{x(row.high)}" stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{x(row.value)}" cy="{y}" r="5" fill="{colour}"/>',
            f'<text x="{_LEFT + _PLOT + 12}" y="{y + 4}">{row.numbers}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    folder = Path(parser(__doc__, FLAGS).parse_args().folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures().items():
        (folder / name).write_text(picture)


if __name__ == "__main__":
    main()
