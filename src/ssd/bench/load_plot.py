"""Load as a drawing: tokens a second in all and for each user, by level, a line for each endpoint.

One file that any page can show; colours follow the reader's dark or light.
"""

from collections.abc import Callable, Sequence

from ssd.bench.load import Kind, Level
from ssd.bench.load_figures import LevelFigures, LoadFigures
from ssd.bench.pages.svg import Axis, Canvas, number, round_number
from ssd.bench.statistics import Estimate

_WIDTH, _PANEL, _GAP = 920, 260, 60
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 34, 46
_STYLE = """
  svg { color-scheme: light dark; background: #ffffff; }
  text { font: 13px system-ui, sans-serif; fill: #1b1f24; } .tick { fill: #626a73; font-size: 12px; }
  .grid { stroke: #e9edf1; } .zero { stroke: #626a73; } .whisker { stroke: #1b1f24; stroke-width: 1.4; }
  .line { fill: none; stroke: currentColor; stroke-width: 2.2; } .dot, .bar { fill: currentColor; }
  .c0 { color: #e07b16; } .c1 { color: #8b939c; } .c2 { color: #3b7dd8; } .c3 { color: #0a7a43; }
  @media (prefers-color-scheme: dark) {
    svg { background: #14171b; } text { fill: #e8ebee; } .tick { fill: #9aa3ad; } .grid { stroke: #252b31; }
    .whisker { stroke: #e8ebee; }
  }
"""
_COLOURS = 4
_Value = Callable[[LevelFigures], Estimate]


def load_plot(figures: LoadFigures) -> str:
    kinds: Sequence[Kind] = ("users", "rate")
    panels = [
        (kind, name, value)
        for kind in kinds
        if any(level.kind == kind for level in figures.settings.levels)
        for name, value in _VALUES
    ]
    height = _TOP + len(panels) * _PANEL + (len(panels) - 1) * _GAP + _BOTTOM
    canvas = Canvas(_WIDTH, height, "tokens a second by load")
    for place, (kind, name, value) in enumerate(panels):
        top = _TOP + place * (_PANEL + _GAP)
        _panel(canvas, figures, kind, name, value, top)
    head, _, rest = canvas.to_text().partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{_STYLE}</style>{rest}\n'


_VALUES: tuple[tuple[str, _Value], ...] = (
    (
        "output tokens a second, all users together",
        lambda row: Estimate(value=row.throughput, count=row.num_requests),
    ),
    ("tokens a second that a user sees, with 95 % intervals", lambda row: row.user_rate),
)


def _panel(canvas: Canvas, figures: LoadFigures, kind: Kind, name: str, value: _Value, top: float) -> None:
    rows = [row for row in figures.rows() if row.level.kind == kind]
    levels = [level for level in figures.settings.levels if level.kind == kind]
    bottom = top + _PANEL
    axis = Axis.over(bottom, top, max((_most(value(row)) for row in rows), default=1.0))
    for tick in axis.ticks:
        canvas.line(_LEFT, axis.place(tick), _WIDTH - _RIGHT, axis.place(tick), "grid" if tick else "zero")
        canvas.text(_LEFT - 8, axis.place(tick) + 4, round_number(tick), "tick", anchor="end")
    canvas.text(0, top - 14, name, "tick")
    pitch = (_WIDTH - _RIGHT - _LEFT) / len(levels)
    places = {level: _LEFT + pitch * (index + 0.5) for index, level in enumerate(levels)}
    for level, x in places.items():
        canvas.text(x, bottom + 18, str(level), "tick", anchor="middle")
    for index, endpoint in enumerate(figures.settings.endpoints):
        _line(canvas, [row for row in rows if row.endpoint == endpoint.name], value, places, axis, index, top)


def _line(
    canvas: Canvas,
    rows: Sequence[LevelFigures],
    value: _Value,
    places: dict[Level, float],
    axis: Axis,
    index: int,
    top: float,
) -> None:
    if not rows:
        return
    css = f"c{index % _COLOURS}"
    canvas.path([(places[row.level], axis.place(value(row).value)) for row in rows], f"line {css}")
    for row in rows:
        found, x = value(row), places[row.level]
        if found.low is not None and found.high is not None:
            canvas.line(x, axis.place(found.low), x, axis.place(found.high), "whisker")
        title = f"{row.endpoint}, {row.level}: {number(found.value)} tok/s"
        canvas.circle(x, axis.place(found.value), 4.5, f"dot {css}", title=title)
    y = top + 14 + 18 * index
    canvas.rect(_WIDTH - _RIGHT + 8, y - 9, 10, 10, f"bar {css}")
    canvas.text(_WIDTH - _RIGHT + 24, y, rows[0].endpoint)


def _most(found: Estimate) -> float:
    return found.value if found.high is None else found.high
