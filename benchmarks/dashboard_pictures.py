"""The dashboards of deploy/ as SVG, from a record of campaigns.e2e.dashboards: what Prometheus had."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

Panel = Mapping[str, Any]
Points = Sequence[tuple[float, float]]
_COLUMNS, _WIDTH, _HEIGHT, _GAP, _TOP, _LINE = 2, 300, 90, 40, 26, 15
_COLOURS = ("#2f6f9f", "#b5442e", "#3f7d3a", "#8a6d1d", "#7a4b94", "#3a8a8a", "#a05a7a", "#666")
_NAMES_IN_LINE = 4


def draw(panels: Sequence[Panel]) -> str:
    """Two panels beside each other, in the order of the dashboard; grey lines mark events."""
    end = max(at for panel in panels for each in panel["series"] for at, _ in each["points"])
    rows = [panels[first : first + _COLUMNS] for first in range(0, len(panels), _COLUMNS)]
    parts, y = list[str](), 8
    for row in rows:
        for column, panel in enumerate(row):
            parts += _panel(panel, end, 44 + column * (_WIDTH + _GAP + 8), y)
        y += _TOP + _HEIGHT + 20 + _LINE * max(map(_lines_of_names, row)) + 12
    width = _COLUMNS * (_WIDTH + _GAP + 8) + 8
    events = [f"{_minutes(at)} {what}" for what, at in panels[0]["events"].items()]
    parts.append(f'<text x="12" y="{y + 8}" fill="#666">{escape("; ".join(events))}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 18}" '
            f'viewBox="0 0 {width} {y + 18}" font-family="sans-serif" font-size="11" fill="#333">',
            f'<rect width="{width}" height="{y + 18}" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, end: float, left: int, top: int) -> Iterator[str]:
    shown = [each for each in panel["series"] if each["points"]]
    most = max((value for each in shown for _, value in each["points"]), default=0.0) or 1.0
    floor, bottom = top + _TOP, top + _TOP + _HEIGHT
    yield f'<text x="{left}" y="{top + 14}" font-weight="bold">{escape(panel["panel"])}</text>'
    for share in (0.0, 0.5, 1.0):
        y = bottom - _HEIGHT * share
        yield f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y}" y2="{y}" stroke="#e4e4e4"/>'
        number = _number(share * most, panel["unit"])
        yield f'<text x="{left - 5}" y="{y + 4}" text-anchor="end">{number}</text>'
    for at in panel["events"].values():
        x = round(left + _WIDTH * at / end, 1)
        yield f'<line x1="{x}" x2="{x}" y1="{floor}" y2="{bottom}" stroke="#999" stroke-dasharray="3 3"/>'
    for at in range(0, int(end) + 1, 60):
        x = round(left + _WIDTH * at / end, 1)
        yield f'<text x="{x}" y="{bottom + 14}" text-anchor="middle" fill="#666">{_minutes(at)}</text>'
    for place, each in enumerate(shown):
        colour = _COLOURS[place % len(_COLOURS)]
        for part in _unbroken(each["points"]):
            path = " ".join(
                f"{left + _WIDTH * at / end:.1f},{bottom - _HEIGHT * max(0.0, value) / most:.1f}"
                for at, value in part
            )
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        x = left + place % _NAMES_IN_LINE * (_WIDTH // _NAMES_IN_LINE + 2)
        y = bottom + 18 + _LINE * (1 + place // _NAMES_IN_LINE)
        yield f'<text x="{x}" y="{y}" fill="{colour}">{escape(each["name"])}</text>'


def _lines_of_names(panel: Panel) -> int:
    return -(-len([each for each in panel["series"] if each["points"]]) // _NAMES_IN_LINE)


def _unbroken(points: Points) -> Iterator[Points]:
    """Pieces between which nothing was known for longer than between most points."""
    step = min((after[0] - before[0] for before, after in pairwise(points)), default=0)
    piece = list(points[:1])
    for before, after in pairwise(points):
        if after[0] - before[0] > step:
            yield piece
            piece = []
        piece.append(after)
    yield piece


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _number(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or not value else f"{1000 * value:.3g} ms"
    return f"{value:.3g}"
