"""The timeline: a few rounds of each case under one clock, target above draft."""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.bench.cases import parse_case
from ssd.bench.pages.colours import Colours
from ssd.bench.pages.svg import Axis, Canvas, number, round_number
from ssd.bench.records import CaseRecord, Span

_WIDTH, _LEFT, _RIGHT, _TOP = 920, 190, 16, 30
_LANE, _LANE_GAP, _CASE_GAP = 20, 3, 20
_WORDS = {
    "target": "target verifies",
    "wait": "waits for the draft",
    "host": "host",
    "draft": "draft computes",
}


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    css: str
    spans: Sequence[Span]

    @property
    def lanes(self) -> list[str]:
        return ["target", "draft"] if any(span.lane == "draft" for span in self.spans) else ["target"]

    @property
    def end(self) -> float:
        return max(span.ended for span in self.spans if span.lane == "target")


def timeline(records: Sequence[CaseRecord], colours: Colours) -> str:
    """As long as every case has something to show."""
    panels = [_panel(record, colours) for record in records]
    end = 1e3 * min(panel.end for panel in panels)
    height = _TOP + sum(len(each.lanes) * (_LANE + _LANE_GAP) + _CASE_GAP for each in panels)
    canvas = Canvas(_WIDTH, height, "who computed when")
    axis = Axis.over(_LEFT, _WIDTH - _RIGHT, end, num_ticks=6)
    axis = Axis(axis.start, axis.end, end, axis.step)  # it ends where the spans do
    for tick in [each for each in axis.ticks if each <= end]:
        canvas.line(axis.place(tick), _TOP - 6, axis.place(tick), height - 8, "grid")
        canvas.text(
            axis.place(tick), _TOP - 12, f"{round_number(tick)} ms" if tick else "0", "tick", anchor="middle"
        )
    y: float = _TOP
    for panel in panels:
        y = _draw(canvas, panel, axis, y) + _CASE_GAP
    return canvas.to_text()


def _panel(record: CaseRecord, colours: Colours) -> _Panel:
    case = parse_case(record.case)
    return _Panel(case.name, colours.css(case), record.spans)


def _draw(canvas: Canvas, panel: _Panel, axis: Axis, y: float) -> float:
    canvas.text(_LEFT - 70, y + _LANE - 5, panel.name, "label", anchor="end")
    for lane in panel.lanes:
        canvas.text(_LEFT - 10, y + _LANE - 5, lane, "tick", anchor="end")
        canvas.rect(axis.start, y, axis.end - axis.start, _LANE, "lane")
        for span in panel.spans:
            if ("draft" if span.lane == "draft" else "target") == lane and 1e3 * span.started < axis.most:
                _block(canvas, panel, span, axis, y)
        y += _LANE + _LANE_GAP
    return y


def _block(canvas: Canvas, panel: _Panel, span: Span, axis: Axis, y: float) -> None:
    start, end = axis.place(1e3 * span.started), axis.place(1e3 * span.ended)
    rows = f", {span.rows} rows" if span.rows else ""
    title = f"{panel.name}: {_WORDS[span.lane]} for {number(1e3 * (span.ended - span.started))} ms{rows}"
    css = {"target": f"bar {panel.css}", "draft": f"bar soft {panel.css}"}.get(span.lane, span.lane)
    # A hair of room between neighbours, so that rounds can be counted.
    canvas.rect(start + 0.4, y, end - start - 0.8, _LANE, css, title=title, radius=1.5)
