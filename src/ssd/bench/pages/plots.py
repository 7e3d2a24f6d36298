"""Which plots a run has: one without data is left out."""

from dataclasses import dataclass

from ssd.bench.figures import ALL
from ssd.bench.pages.bars import FLOPS, SPEED, bars
from ssd.bench.pages.colours import Colours
from ssd.bench.pages.lanes import timeline
from ssd.bench.pages.lines import depths, latency
from ssd.bench.summary import RunFigures


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    caption: str
    drawing: str


def plots(figures: RunFigures, colours: Colours) -> list[Plot]:
    found = [*_speeds(figures, colours), _timeline(figures, colours), _depths(figures, colours)]
    found += [_latency(figures, colours), _flops(figures, colours)]
    return [plot for plot in found if plot is not None]


def _speeds(figures: RunFigures, colours: Colours) -> list[Plot]:
    found = []
    for temperature, batch_size in figures.slices:
        rows = [
            row
            for row in figures.rows
            if (row.case.temperature, row.case.batch_size) == (temperature, batch_size)
        ]
        texts = "one text" if batch_size == 1 else f"{batch_size} texts"
        which = f", temperature {temperature:g}, {texts} at a time" if len(figures.slices) > 1 else ""
        caption = (
            "Tokens a second that one user sees, after the first token. Lines: 95 % intervals over prompts."
        )
        found.append(Plot(f"Speed by data set and mode{which}", caption, bars(rows, SPEED, colours)))
    return found


def _timeline(figures: RunFigures, colours: Colours) -> Plot | None:
    """Of one prompt, at the smallest batch size."""
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
    return Plot("The timeline of a few rounds", caption, timeline(records, colours))


def _depths(figures: RunFigures, colours: Colours) -> Plot | None:
    rows = [row for row in figures.first_slice(figures.datasets[-1]) if any(row.depths)]
    if not rows:
        return None
    where = "all data sets" if rows[0].dataset == ALL else rows[0].dataset
    caption = f"Share of verifications in which at least so many drafted tokens were accepted; {where}."
    return Plot("How deep speculations hit", caption, depths(rows, colours))


def _latency(figures: RunFigures, colours: Colours) -> Plot | None:
    temperature = figures.slices[0][0]
    rows = [
        row
        for row in figures.rows
        if row.dataset == figures.datasets[-1] and row.case.temperature == temperature
    ]
    if len({row.case.batch_size for row in rows}) < 2:
        return None
    caption = "Time per output token that each user sees, by how many texts run together. Lower is better."
    return Plot("Latency against batch size", caption, latency(rows, colours))


def _flops(figures: RunFigures, colours: Colours) -> Plot | None:
    if figures.manifest.target is None:
        return None
    rows = figures.first_slice(figures.datasets[-1])
    caption = (
        "Tokens for 10⁹ floating-point operations of target and draft together: what speculation costs in "
        "arithmetic, rejected tokens included."
    )
    return Plot("Tokens per GFLOP", caption, bars(rows, FLOPS, colours))
