"""Draws the plots of a run: speed, timeline, depths, latency, arithmetic.

Plots without data are left out. Figures come from summary.py, spans from the records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ssd.bench.cases import Case, parse_case
from ssd.bench.figures import ALL, Figures
from ssd.bench.pages.drawing import COLOURS, WIDTH, PlotLine, Point, SvgDrawing, lines, rule, stroke
from ssd.bench.records import CaseRecord, TimelineSpan
from ssd.bench.statistics import Estimate
from ssd.bench.summary import RunFigures
from ssd.bench.tables import number

_SHADES = 4
_LEFT, _TOP = 190, 30
_BAR, _PITCH, _HEAD = 17, 23, 30
_LANE, _LANE_GAP, _CASE_GAP = 20, 3, 20
_SPANS = {
    "target": "target verifies", "wait": "waits for the draft", "host": "host", "draft": "draft computes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    caption: str
    drawing: str


def shades(cases: Sequence[Case]) -> Mapping[str, str]:
    """Colours by case name: one hue per mode, independent of temperature and batch size."""
    names = dict.fromkeys((case.mode, case.name) for case in cases)
    of_mode = {mode: [name for each, name in names if each == mode] for mode, _ in names}
    return {
        name: f"{mode}-{index % _SHADES}" for mode, each in of_mode.items() for index, name in enumerate(each)
    }


def plots(figures: RunFigures) -> list[Plot]:
    colours = shades(figures.cases)
    drawn = [*_speeds(figures, colours), _timeline(figures, colours), _depths(figures, colours)]
    drawn += [_latency(figures, colours), _flops(figures, colours)]
    return [plot for plot in drawn if plot is not None]


def _speeds(figures: RunFigures, colours: Mapping[str, str]) -> list[Plot]:
    caption = "Tokens a second that one user sees, after the first token. Lines: 95 % intervals over prompts."
    found = []
    for temperature, batch_size in figures.slices:
        rows = [
            row
            for row in figures.rows
            if (row.case.temperature, row.case.batch_size) == (temperature, batch_size)
        ]
        texts = "one text" if batch_size == 1 else f"{batch_size} texts"
        which = f", temperature {temperature:g}, {texts} at a time" if len(figures.slices) > 1 else ""
        drawing = _bars(rows, "tokens a second", lambda row: row.rate, _speed_words, colours)
        found.append(Plot(f"Speed by data set and mode{which}", caption, drawing))
    return found


def _speed_words(row: Figures) -> str:
    ratio = f"  ·  {row.over_ar.value:.2f} × ar" if row.over_ar is not None else ""
    return f"{number(row.rate.value)}{ratio}"


def _flops(figures: RunFigures, colours: Mapping[str, str]) -> Plot | None:
    if figures.manifest.target is None:
        return None
    caption = (
        "Tokens for 10⁹ floating-point operations of target and draft together: what speculation costs in "
        "arithmetic, rejected tokens included."
    )
    drawing = _bars(
        figures.first_slice(figures.datasets[-1]),
        "tokens per GFLOP",
        lambda row: Estimate(value=row.tokens_per_gflop, count=row.num_prompts),
        lambda row: number(row.tokens_per_gflop),
        colours,
    )
    return Plot("Tokens per GFLOP", caption, drawing)


def _bars(
    rows: Sequence[Figures],
    label: str,
    value: Callable[[Figures], Estimate],
    words: Callable[[Figures], str],
    colours: Mapping[str, str],
) -> str:
    """Grouped by data set, in the order given; the axis begins at zero."""
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    height = _TOP + len(datasets) * _HEAD + len(rows) * _PITCH + 12
    drawing = SvgDrawing(height, label)
    axes = drawing.axes(_LEFT, _TOP, WIDTH - 210, height - 12)
    axes.set_ylim(height - 12, _TOP)
    axes.xaxis.tick_top()
    found = {id(row): value(row) for row in rows}
    most = rule(axes, "x", max(each.high or each.value for each in found.values()))
    drawing.text(_LEFT - 10, _TOP - 10, label, "quiet", size=12, ha="right")
    y, gap = float(_TOP), 8 * most / (WIDTH - 210 - _LEFT)
    names: dict[float, str] = {}
    for dataset in datasets:
        drawing.text(0, y + 15, dataset, weight="bold")
        y += _HEAD
        for row in (row for row in rows if row.dataset == dataset):
            each, title = found[id(row)], f"{dataset}, {row.case.name}: {words(row)}"
            end = each.value
            (bar,) = axes.barh(y, each.value, _BAR, color=COLOURS[colours[row.case.name]][0], clip_on=False)
            if each.interval is not None:
                low, high = each.interval
                end = max(end, high)
                stroke(axes, [low, low, low, high, high, high], [y - 4, y + 4, y, y, y - 4, y + 4])
                title += f", 95 % interval {number(low)} to {number(high)}, {row.num_prompts} prompts"
            drawing.set_tooltip(bar, title)
            axes.text(end + gap, y, words(row), size=13, color=COLOURS["ink"][0], va="center")
            names[y] = row.case.name
            y += _PITCH
    axes.set_yticks(list(names), labels=list(names.values()), size=13, color=COLOURS["ink"][0])
    return drawing.to_svg()


def _timeline(figures: RunFigures, colours: Mapping[str, str]) -> Plot | None:
    """The timeline of one prompt, at the first temperature and batch size."""
    shown = [record for record in figures.records if record.spans]
    if not shown:
        return None
    labels = [
        case.label for case in figures.cases if (case.temperature, case.batch_size) == figures.slices[0]
    ]
    first = {record.case: record for record in reversed(shown) if record.dataset == shown[0].dataset}
    records = [first[label] for label in labels if label in first]
    if not records:
        return None
    caption = (
        f"A few rounds of one prompt ({records[0].dataset} {records[0].prompt}) in each mode, by one clock. "
        "Solid: the target verifies. Pale: the draft computes. Red: the target waits."
    )
    return Plot("The timeline of a few rounds", caption, _lanes(records, colours))


def _lanes(records: Sequence[CaseRecord], colours: Mapping[str, str]) -> str:
    """Target above draft on one time axis, which ends when the first case ends."""
    end = 1e3 * min(max(span.ended for span in each.spans if span.lane == "target") for each in records)
    drafts = [any(span.lane == "draft" for span in each.spans) for each in records]
    height = _TOP + (len(records) + sum(drafts)) * (_LANE + _LANE_GAP) + len(records) * _CASE_GAP
    drawing = SvgDrawing(height, "when target and draft computed")
    axes = drawing.axes(_LEFT, _TOP, WIDTH - 16, height)
    axes.set_ylim(height, _TOP)
    axes.xaxis.tick_top()
    rule(axes, "x", end, 6)
    ticks = [tick for tick in axes.get_xticks() if tick <= end]
    axes.set_xticks(ticks, labels=[f"{tick:,g} ms" if tick else "0" for tick in ticks])
    axes.set_xlim(0, end)
    lanes: dict[float, str] = {}
    y = _TOP + _LANE / 2
    for record, has_draft in zip(records, drafts, strict=True):
        name = parse_case(record.case).name
        drawing.text(_LEFT - 70, y + 5, name, ha="right")
        for lane in ("target", "draft")[: 1 + has_draft]:
            lanes[y] = lane
            axes.barh(y, end, _LANE, color=COLOURS["tile"][0], clip_on=False, zorder=0.5)
            for span in record.spans:
                if (span.lane == "draft") == (lane == "draft") and 1e3 * span.started < end:
                    colour = {"wait": "bad", "host": "quiet"}.get(span.lane, colours[name])
                    started, ended = 1e3 * span.started, min(1e3 * span.ended, end)
                    # A small gap between neighbours, so that rounds can be counted.
                    (bar,) = axes.barh(
                        y, max(0.0, ended - started - 0.001 * end), _LANE, left=started, clip_on=False,
                        color=COLOURS[colour][0], alpha=0.62 if lane == "draft" else None,
                    )  # fmt: skip
                    drawing.set_tooltip(bar, f"{name}: {_span_words(span)}")
            y += _LANE + _LANE_GAP
        y += _CASE_GAP
    axes.set_yticks(list(lanes), labels=list(lanes.values()))
    return drawing.to_svg()


def _span_words(span: TimelineSpan) -> str:
    rows = f", {span.rows} rows" if span.rows else ""
    return f"{_SPANS[span.lane]} for {number(1e3 * (span.ended - span.started))} ms{rows}"


def _depths(figures: RunFigures, colours: Mapping[str, str]) -> Plot | None:
    rows = [row for row in figures.first_slice(figures.datasets[-1]) if any(row.depths)]
    if not rows:
        return None
    where = "all data sets" if rows[0].dataset == ALL else rows[0].dataset
    caption = f"Share of verifications in which at least this many drafted tokens were accepted; {where}."
    drawn = [
        PlotLine(
            row.case.name,
            colours[row.case.name],
            [
                Point(str(depth), 100 * share, f"at least {depth} accepted in {share:.0%} of rounds")
                for depth, share in enumerate(row.depths, 1)
            ],
        )
        for row in rows
    ]
    drawing = lines(drawn, "drafted tokens accepted in a round, at least", "% of rounds", most=100.0)
    return Plot("How deep speculations hit", caption, drawing)


def _latency(figures: RunFigures, colours: Mapping[str, str]) -> Plot | None:
    """Milliseconds per token by batch size."""
    rows = [
        row
        for row in sorted(figures.rows, key=lambda each: each.case.batch_size)
        if row.dataset == figures.datasets[-1] and row.case.temperature == figures.slices[0][0]
    ]
    if len({row.case.batch_size for row in rows}) < 2:
        return None
    drawn = [
        PlotLine(name, colours[name], [_latency_point(row) for row in rows if row.case.name == name])
        for name in dict.fromkeys(row.case.name for row in rows)
    ]
    caption = "Time per output token that each user sees, by how many texts run together. Lower is better."
    return Plot("Latency against batch size", caption, lines(drawn, "texts that run together", "ms a token"))


def _latency_point(row: Figures) -> Point:
    latency, size = row.milliseconds_per_token, row.case.batch_size
    in_all = f"{number(row.output_rate)} tok/s in all"
    words = f"{size} together: {number(latency.value)} ms a token, {in_all}"
    return Point(str(size), latency.value, words, latency.interval)
