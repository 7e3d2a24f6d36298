"""Drawing: shapes on a canvas, axes that begin at zero, colours by class, hover titles.

Knows SVG. Colours are the page's (classes and CSS variables), so that a drawing is dark or light with it.
Does not know runs.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass


class Canvas:
    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height = width, height
        self._root = ET.Element(
            "svg", {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": label}
        )

    def rect(
        self, x: float, y: float, width: float, height: float, css: str, *, title: str = "", radius: float = 2
    ) -> None:
        places = {"x": x, "y": y, "width": max(width, 0.0), "height": height, "rx": radius}
        self._add("rect", places, css, title=title)

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        self._add("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2}, css)

    def circle(self, x: float, y: float, radius: float, css: str, *, title: str = "") -> None:
        self._add("circle", {"cx": x, "cy": y, "r": radius}, css, title=title)

    def path(self, points: Sequence[tuple[float, float]], css: str) -> None:
        steps = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._root.append(ET.Element("path", {"d": f"M{steps}", "class": css}))

    def text(self, x: float, y: float, words: str, css: str = "", *, anchor: str = "start") -> None:
        self._add("text", {"x": x, "y": y}, css, words=words, anchor=anchor)

    def interval(self, low: float, high: float, y: float, half: float = 4) -> None:
        """A horizontal one, with ends."""
        self.line(low, y, high, y, "whisker")
        for x in (low, high):
            self.line(x, y - half, x, y + half, "whisker")

    def to_text(self) -> str:
        return ET.tostring(self._root, encoding="unicode")

    def _add(
        self,
        tag: str,
        places: dict[str, float],
        css: str,
        *,
        title: str = "",
        words: str | None = None,
        anchor: str = "",
    ) -> None:
        element = ET.SubElement(self._root, tag, {name: f"{place:.1f}" for name, place in places.items()})
        if css:
            element.set("class", css)
        if anchor:
            element.set("text-anchor", anchor)
        element.text = words
        if title:
            ET.SubElement(element, "title").text = title


@dataclass(frozen=True, slots=True)
class Axis:
    """From zero to a round number, over a stretch of the canvas."""

    start: float
    end: float
    most: float
    step: float

    @classmethod
    def over(cls, start: float, end: float, largest: float, num_ticks: int = 5) -> "Axis":
        rough = max(largest, 1e-9) / num_ticks
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
        return cls(start, end, step * math.ceil(largest / step - 1e-9), step)

    def place(self, value: float) -> float:
        return self.start + (self.end - self.start) * min(value, self.most) / self.most

    @property
    def ticks(self) -> list[float]:
        return [self.step * number for number in range(round(self.most / self.step) + 1)]


def number(value: float) -> str:
    """As many digits as say something."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def round_number(value: float) -> str:
    """Of a tick."""
    return f"{round(value, 9):,g}" if value < 1e6 else f"{value:g}"
