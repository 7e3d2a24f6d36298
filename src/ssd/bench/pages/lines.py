"""Lines: how deep speculations were accepted, and how long a token takes as batches grow."""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.bench.figures import Figures
from ssd.bench.pages.colours import Colours
from ssd.bench.pages.svg import Axis, Canvas, number, round_number

_WIDTH, _HEIGHT = 920, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 28, 46
_LABEL_GAP = 15


@dataclass(frozen=True, slots=True)
class _Point:
    x: str
    value: float
    words: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    css: str
    points: Sequence[_Point]


def depths(rows: Sequence[Figures], colours: Colours) -> str:
    """Of the rounds, how many had at least so many drafted tokens accepted."""
    drawn = [
        _Line(
            row.case.name,
            colours.css(row.case),
            [
                _Point(str(depth), 100 * share, f"at least {depth} accepted in {share:.0%} of rounds")
                for depth, share in enumerate(row.depths, 1)
            ],
        )
        for row in rows
        if any(row.depths)
    ]
    return _plot(drawn, "drafted tokens accepted in a round, at least", "% of rounds", most=100.0)


def latency(rows: Sequence[Figures], colours: Colours) -> str:
    """Milliseconds a user waits for a token, by how many are served together."""
    lines: dict[str, list[Figures]] = {}
    for row in sorted(rows, key=lambda each: each.case.batch_size):
        lines.setdefault(row.case.name, []).append(row)
    drawn = [
        _Line(name, colours.css(members[0].case), [_latency_point(row) for row in members])
        for name, members in lines.items()
    ]
    return _plot(drawn, "texts that run together", "ms a token")


def _latency_point(row: Figures) -> _Point:
    found = row.milliseconds_per_token
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    in_all = f"{number(row.output_rate)} tok/s in all"
    words = f"{row.case.batch_size} together: {number(found.value)} ms a token, {in_all}"
    return _Point(str(row.case.batch_size), found.value, words, interval)


def _plot(lines: Sequence[_Line], across: str, up: str, most: float | None = None) -> str:
    canvas = Canvas(_WIDTH, _HEIGHT, f"{up} by {across}")
    bottom = _HEIGHT - _BOTTOM
    names = sorted({point.x for line in lines for point in line.points}, key=int)
    largest = max(max(point.value, *(point.interval or (0.0,))) for line in lines for point in line.points)
    axis = Axis.over(bottom, _TOP, most or largest)
    for tick in axis.ticks:
        canvas.line(_LEFT, axis.place(tick), _WIDTH - _RIGHT, axis.place(tick), "grid" if tick else "zero")
        canvas.text(_LEFT - 8, axis.place(tick) + 4, round_number(tick), "tick", anchor="end")
    canvas.text(0, _TOP - 14, up, "tick")
    pitch = (_WIDTH - _RIGHT - _LEFT) / max(1, len(names))
    places = {name: _LEFT + pitch * (number_ + 0.5) for number_, name in enumerate(names)}
    for name, x in places.items():
        canvas.text(x, bottom + 18, name, "tick", anchor="middle")
    canvas.text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 38, across, "tick", anchor="middle")
    for line in lines:
        _draw(canvas, line, places, axis)
    _name_lines(canvas, lines, axis)
    return canvas.to_text()


def _draw(canvas: Canvas, line: _Line, places: dict[str, float], axis: Axis) -> None:
    canvas.path([(places[each.x], axis.place(each.value)) for each in line.points], f"line {line.css}")
    for point in line.points:
        x = places[point.x]
        if point.interval is not None:
            canvas.line(x, axis.place(point.interval[0]), x, axis.place(point.interval[1]), "whisker")
        title = f"{line.name}, {point.words}"
        canvas.circle(x, axis.place(point.value), 4.5, f"dot {line.css}", title=title)


def _name_lines(canvas: Canvas, lines: Sequence[_Line], axis: Axis) -> None:
    """At the lines' right ends, kept apart."""
    below = 0.0
    for line in sorted(lines, key=lambda each: axis.place(each.points[-1].value)):
        y = max(axis.place(line.points[-1].value) + 4, below + _LABEL_GAP)
        canvas.rect(_WIDTH - _RIGHT + 8, y - 9, 10, 10, f"bar {line.css}")
        canvas.text(_WIDTH - _RIGHT + 24, y, line.name, "label")
        below = y
