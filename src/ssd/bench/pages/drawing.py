"""Draws SVG plots for a page with matplotlib. The same data give the same SVG.

Drawings are made in light colours; in the SVG each colour becomes a CSS variable, so that they follow the
page's light or dark scheme. Text stays text, in the page's font. Coordinates are in units of the drawing,
from its upper left corner. Does not know runs. matplotlib comes with the extra `bench`.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ssd.version import how_to_install

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

WIDTH = 920
COLOURS: Mapping[str, tuple[str, str]] = {
    "page": ("#ffffff", "#14171b"), "ink": ("#1b1f24", "#e8ebee"), "quiet": ("#626a73", "#9aa3ad"),
    "rule": ("#d9dee4", "#333a42"), "grid": ("#e9edf1", "#252b31"), "tile": ("#f5f7f9", "#1c2126"),
    "good": ("#0a7a43", "#4cc38a"), "bad": ("#b3261e", "#ff8a80"),
    "ar-0": ("#8b939c", "#7d8691"), "ar-1": ("#6b737c", "#a3abb4"), "ar-2": ("#adb4bb", "#5c646d"),
    "ar-3": ("#50575f", "#c3c9cf"), "sd-0": ("#3b7dd8", "#4f8fe6"), "sd-1": ("#79a9e8", "#8bb6f2"),
    "sd-2": ("#1f58a8", "#2f6cc0"), "sd-3": ("#a9c8f1", "#b8d3f8"), "ssd-0": ("#e07b16", "#f0913a"),
    "ssd-1": ("#b4560a", "#ffbe85"), "ssd-2": ("#f2a65a", "#c96d17"), "ssd-3": ("#8a3d05", "#ffd9b5"),
}  # fmt: skip
"""Light and dark colours by name. The colours of a mode are shades of one hue."""
_NAMES = {light: name for name, (light, _) in COLOURS.items()}
TEXT = "svg text { font-family: system-ui, sans-serif !important; font-variant-numeric: tabular-nums; }"
"""Overrides the font that matplotlib writes into each text."""


def css() -> str:
    """CSS variables of all colours, light and dark."""
    light, dark = (
        " ".join(f"--{name}: {both[scheme]};" for name, both in COLOURS.items()) for scheme in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


class SvgDrawing:
    def __init__(self, height: float, label: str) -> None:
        """ValueError with the extra to install if matplotlib is missing."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ValueError(f"plots need the package matplotlib: {how_to_install('bench')}") from error

        self.height, self._label, self._tooltips = height, label, dict[str, str]()
        self._figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="none")

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes with these edges, without a frame."""
        width, height = (right - left) / WIDTH, (bottom - top) / self.height
        axes = self._figure.add_axes((left / WIDTH, 1 - bottom / self.height, width, height))
        axes.set_frame_on(False)
        axes.tick_params(length=0, labelsize=12, labelcolor=COLOURS["quiet"][0], pad=8)
        return axes

    def text(self, x: float, y: float, words: str, colour: str = "ink", **more: object) -> None:
        """`y`: the baseline of the text."""
        start = (x / WIDTH, 1 - y / self.height)
        self._figure.text(*start, words, color=COLOURS[colour][0], **{"size": 13, **more})  # type: ignore[arg-type]

    def set_tooltip(self, artist: Artist, words: str) -> None:
        """Sets the text that hovering shows."""
        name = f"tooltip-{len(self._tooltips)}"
        artist.set_gid(name)
        self._tooltips[name] = words

    def to_svg(self) -> str:
        """The SVG, for a page that defines the colours' variables."""
        from matplotlib import rc_context

        written = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": self._label}):
            self._figure.savefig(written, format="svg", metadata={"Date": None})
        root = ET.fromstring(written.getvalue())
        _strip(root)
        for element in root.iter():
            if (words := self._tooltips.get(element.attrib.pop("id", ""))) is not None:
                title = ET.Element("title")
                title.text = words
                element.insert(0, title)
        root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": self._label}
        text = ET.tostring(root, encoding="unicode")
        return re.sub("#[0-9a-f]{6}", lambda match: _variable(match[0]), text)


def _strip(element: ET.Element) -> None:
    """Removes namespaces, metadata and styles, which a page does not need."""
    element.tag = element.tag.rpartition("}")[2]
    for child in list(element):
        if child.tag.rpartition("}")[2] in ("metadata", "defs"):
            element.remove(child)
        else:
            _strip(child)


def _variable(colour: str) -> str:
    return f"var(--{_NAMES[colour]})" if colour in _NAMES else colour


@dataclass(frozen=True, slots=True)
class Point:
    x: str
    value: float
    words: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class PlotLine:
    name: str
    colour: str
    points: Sequence[Point]


def lines(plotted: Sequence[PlotLine], across: str, up: str, *, most: float | None = None) -> str:
    """A drawing of lines with intervals, each named at its right end; `most`: end of the vertical axis."""
    left, right, top, bottom = 60, WIDTH - 190, 28, 254
    xs = sorted({point.x for line in plotted for point in line.points}, key=int)
    drawing = SvgDrawing(300, f"{up} by {across}")
    axes = drawing.axes(left, top, right, bottom)
    ends = [max(point.value, *(point.interval or (0.0,))) for line in plotted for point in line.points]
    axes.set_xticks(range(len(xs)), labels=xs)
    axes.set_xlim(-0.5, len(xs) - 0.5)
    most = rule(axes, "y", most or max(ends, default=1.0))
    drawing.text(0, top - 14, up, "quiet", size=12)
    below = 0.0
    for line in sorted(plotted, key=lambda each: -each.points[-1].value):
        colour, indices = COLOURS[line.colour][0], [xs.index(point.x) for point in line.points]
        axes.plot(indices, [point.value for point in line.points], color=colour, linewidth=2.2, clip_on=False)
        for x, point in zip(indices, line.points, strict=True):
            if point.interval is not None:
                stroke(axes, [x, x], point.interval)
            dot = stroke(axes, [x, x], (point.value, point.value), colour=line.colour, width=9)
            drawing.set_tooltip(dot, f"{line.name}, {point.words}")
        y = max(bottom - (bottom - top) * line.points[-1].value / most + 4, below + 15)
        drawing.text(right + 8, y, "■", line.colour)
        drawing.text(right + 24, y, line.name)
        below = y
    drawing.text((left + right) / 2, 292, across, "quiet", size=12, ha="center")
    return drawing.to_svg()


def stroke(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], *, colour: str = "ink", width: float = 1.4
) -> Artist:
    """A stroke with round ends; without a length it is a dot."""
    (line,) = axes.plot(
        xs, ys, color=COLOURS[colour][0], linewidth=width, solid_capstyle="round", clip_on=False, zorder=3
    )
    return line


def rule(axes: Axes, way: Literal["x", "y"], largest: float, count: int = 5) -> float:
    """Sets an axis from zero to a round number, with a line at each tick. Returns that number."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ticks = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(0, max(largest, 1e-9))
    axis, across = (axes.xaxis, axes.axvline) if way == "x" else (axes.yaxis, axes.axhline)
    axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(value, 9):,g}"))
    (axes.set_xlim if way == "x" else axes.set_ylim)(0, ticks[-1])
    for tick in ticks:
        across(tick, color=COLOURS["grid" if tick else "quiet"][0], linewidth=1, clip_on=False, zorder=0)
    return float(ticks[-1])
