"""Bars: how fast each case was on each data set, and what its arithmetic yielded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd.bench.figures import Figures
from ssd.bench.pages.colours import Colours
from ssd.bench.pages.svg import Axis, Canvas, number, round_number

_WIDTH, _LEFT, _RIGHT = 920, 190, 210
_BAR, _GAP, _GROUP_GAP, _TOP = 17, 6, 30, 26


@dataclass(frozen=True, slots=True)
class BarSpec:
    """What the bars of a plot say of a row."""

    label: str
    value: Callable[[Figures], float]
    words: Callable[[Figures], str]
    interval: Callable[[Figures], tuple[float, float] | None] = lambda row: None


def _speed_words(row: Figures) -> str:
    ratio = f"  ·  {row.over_ar.value:.2f} × ar" if row.over_ar is not None else ""
    return f"{number(row.rate.value)}{ratio}"


def _speed_interval(row: Figures) -> tuple[float, float] | None:
    low, high = row.rate.low, row.rate.high
    return None if low is None or high is None else (low, high)


SPEED = BarSpec("tokens a second", lambda row: row.rate.value, _speed_words, _speed_interval)
FLOPS = BarSpec(
    "tokens per GFLOP", lambda row: row.tokens_per_gflop, lambda row: number(row.tokens_per_gflop)
)


def bars(rows: Sequence[Figures], spec: BarSpec, colours: Colours) -> str:
    """Grouped by data set, in the order given; the axis begins at zero."""
    groups: dict[str, list[Figures]] = {}
    for row in rows:
        groups.setdefault(row.dataset, []).append(row)
    height = _TOP + sum(_GROUP_GAP + len(each) * (_BAR + _GAP) for each in groups.values()) + 12
    canvas = Canvas(_WIDTH, height, spec.label)
    ends = [max(spec.value(row), *(spec.interval(row) or (0.0,))) for row in rows]
    axis = Axis.over(_LEFT, _WIDTH - _RIGHT, max(ends))
    for tick in axis.ticks:
        canvas.line(axis.place(tick), _TOP - 6, axis.place(tick), height - 8, "grid" if tick else "zero")
        canvas.text(axis.place(tick), _TOP - 12, round_number(tick), "tick", anchor="middle")
    canvas.text(_LEFT - 10, _TOP - 12, spec.label, "tick", anchor="end")
    y: float = _TOP
    for name, members in groups.items():
        canvas.text(0, y + 15, name, "group")
        y += _GROUP_GAP - 8
        for row in members:
            _bar(canvas, axis, y, row, spec, colours)
            y += _BAR + _GAP
        y += 8
    return canvas.to_text()


def _bar(canvas: Canvas, axis: Axis, y: float, row: Figures, spec: BarSpec, colours: Colours) -> None:
    name, middle = row.case.name, y + _BAR / 2
    canvas.text(_LEFT - 10, middle + 4, name, "label", anchor="end")
    title = f"{row.dataset}, {name}: {spec.words(row)}"
    found = spec.interval(row)
    if found is not None:
        title += f", 95 % interval {number(found[0])} to {number(found[1])}, {row.num_prompts} prompts"
    css = f"bar {colours.css(row.case)}"
    canvas.rect(axis.start, y, axis.place(spec.value(row)) - axis.start, _BAR, css, title=title)
    end = axis.place(spec.value(row))
    if found is not None:
        low, high = axis.place(found[0]), axis.place(found[1])
        canvas.interval(low, high, middle)
        end = max(end, high)
    canvas.text(end + 8, middle + 4, spec.words(row), "value")
