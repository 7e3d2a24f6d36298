"""The picture of a record of network_curve: three plots over the round trip, below each other, as SVG."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

Point = dict[str, Any]

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 350, 150, 44, 36, 88
_COLOURS = ("#b5442e", "#2f6f9f", "#3f7d3a")
_PLOTS = (("hits", "hits a round", 1.0), ("tokens", "tokens a round", 10.0), ("speed", "speed over SD", 2.0))


def draw(points: Sequence[Point]) -> str:
    """Colours are times of a verification; full lines are the smallest batch, dashed ones the others.

    Rings are drafts that work no further ahead where the line is longer.
    """
    trips = sorted({point["trip"] for point in points})
    width, height = _LEFT + _WIDTH + 24, _TOP + len(_PLOTS) * (_HEIGHT + _GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#444">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for place, (name, title, least_most) in enumerate(_PLOTS):
        most = max(least_most, *(point[name] for point in points))
        parts += _plot(points, trips, name, title, most, _TOP + place * (_HEIGHT + _GAP))
    return "\n".join([*parts, *_legend(points, height - 52), "</svg>\n"])


def _plot(
    points: Sequence[Point], trips: Sequence[float], name: str, title: str, most: float, top: int
) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="{top - 12}" font-weight="bold">{title}</text>'
    for share in (0.0, 0.5, 1.0):
        y = _y(share * most, most, top)
        yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{share * most:.3g}</text>'
    for trip in trips:
        yield f'<text x="{_x(trip, trips)}" y="{top + _HEIGHT + 16}" text-anchor="middle">{trip:g}</text>'
    middle = _LEFT + _WIDTH / 2
    yield f'<text x="{middle}" y="{top + _HEIGHT + 32}" text-anchor="middle">round trip, ms</text>'
    for verify, batch, colour, dash in _lines(points):
        mine = [each for each in points if (each["verify"], each["batch"]) == (verify, batch)]
        mine.sort(key=lambda each: each["trip"])
        places = [(_x(each["trip"], trips), _y(each[name], most, top), each["further"]) for each in mine]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, is_further in places if is_further)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        for x, y, is_further in places:
            if not is_further:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{colour}"{dash}/>'


def _lines(points: Sequence[Point]) -> Iterator[tuple[float, int, str, str]]:
    verifies, batches = (sorted({point[name] for point in points}) for name in ("verify", "batch"))
    for verify, colour in zip(verifies, _COLOURS, strict=False):
        for batch in batches:
            yield verify, batch, colour, "" if batch == batches[0] else ' stroke-dasharray="5 4"'


def _legend(points: Sequence[Point], top: int) -> Iterator[str]:
    for place, (verify, batch, colour, dash) in enumerate(_lines(points)):
        x, y = _LEFT + place % 2 * 180, top + place // 2 * 18
        yield f'<path d="M{x},{y - 4}h24" stroke="{colour}" stroke-width="2"{dash}/>'
        yield f'<text x="{x + 30}" y="{y}">{verify:g} ms, batch {batch}</text>'


def _x(trip: float, trips: Sequence[float]) -> float:
    span = math.log(trips[-1] / trips[0]) or 1.0
    return round(_LEFT + _WIDTH * math.log(trip / trips[0]) / span, 1)


def _y(value: float, most: float, top: int) -> float:
    return round(top + _HEIGHT * (1 - value / most), 1)
