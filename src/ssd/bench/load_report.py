"""A load run as Markdown with a plot beside it: report.md and load.svg in the run's folder."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ssd.bench.load import Kind
from ssd.bench.load_figures import LevelFigures, LoadFigures, Percentiles, in_words
from ssd.bench.pages.columns import number
from ssd.bench.pages.drawing import Drawing, Line, Point, lines
from ssd.bench.statistics import Estimate

COLUMNS = (
    "level", "endpoint", "tok/s in all", "tok/s a user (95 %)", "first token p50 / p90 / p99, s",
    "ms a token p50 / p90 / p99", "tok/s a device", "failed", "cut off",
)  # fmt: skip
SHORT_COLUMNS = (
    "level",
    "endpoint",
    "tok/s",
    "of a user (95 %)",
    "of a device",
    "first, s",
    "failed",
    "cut off",
)


def columns(figures: LoadFigures) -> list[str]:
    has_prices = any(row.cost is not None for row in figures.rows())
    return [*COLUMNS, *(["cost of a million tokens"] if has_prices else [])]


def cells(row: LevelFigures) -> list[str]:
    costs = [] if row.cost is None else [f"{row.cost:.2f}"]
    return [
        str(row.level),
        row.endpoint,
        f"{row.throughput:.1f}",
        str(row.user_rate),
        _spelled(row.wait, "{:.2f}"),
        _spelled(row.per_token, "{:.1f}", scale=1000),
        f"{row.per_device:.1f}",
        f"{row.num_failed} of {row.num_requests + row.num_failed + row.num_unfinished}",
        str(row.num_unfinished),
        *costs,
    ]


def short_cells(row: LevelFigures) -> list[str]:
    """For a terminal: medians."""
    wait, failed = f"{row.wait.p50:.2f}", str(row.num_failed)
    return [
        str(row.level),
        row.endpoint,
        f"{row.throughput:.1f}",
        str(row.user_rate),
        f"{row.per_device:.1f}",
        wait,
        failed,
        str(row.num_unfinished),
    ]


def verdicts(figures: LoadFigures) -> list[str]:
    """The first endpoint beside each of the others."""
    first, *others = (each.name for each in figures.settings.endpoints)
    return [line for other in others for line in in_words(first, other, figures.ratios(first, other))]


def write_load_report(figures: LoadFigures, folder: Path) -> list[Path]:
    pages = {folder / "report.md": "\n".join(_lines(figures)) + "\n", folder / "load.svg": load_plot(figures)}
    for path, text in pages.items():
        path.write_text(text)
    return list(pages)


def _lines(figures: LoadFigures) -> Iterator[str]:
    settings = figures.settings
    yield from ("# Load", "")
    yield (
        f"Prompts of {', '.join(settings.datasets)}, {settings.max_tokens} tokens whatever they are, greedy. "
        "Users ask again as soon as they have their answer; requests at a rate arrive as a Poisson process. "
        "Endpoints took turns at each level. Tokens a second of a user: after the first, "
        "median of requests in a round; intervals are over rounds. Requests cut off at the end of a level's "
        "time are in no figure but their own."
    )
    yield ""
    for endpoint in settings.endpoints:
        body = ", ".join(f"{name}: {value}" for name, value in endpoint.body.items())
        devices = f"{endpoint.devices:g} device{'s' if endpoint.devices != 1 else ''}"
        yield f"- {endpoint.name}: {endpoint.model} at {endpoint.url}, {devices}" + (
            f", {body}" if body else ""
        )
    yield from ("", "![throughput and rate by load](load.svg)", "")
    kinds: Sequence[Kind] = ("users", "rate")
    for kind in kinds:
        rows = [row for row in figures.rows() if row.level.kind == kind]
        if rows:
            names = columns(figures)
            yield from (f"| {' | '.join(names)} |", "|---" * len(names) + "|")
            yield from (f"| {' | '.join(cells(row))} |" for row in rows)
            yield ""
    yield from (f"- {line}" for line in verdicts(figures))
    yield from _ratio_lines(figures)


def _ratio_lines(figures: LoadFigures) -> Iterator[str]:
    first, *others = (each.name for each in figures.settings.endpoints)
    for other in others:
        names = (f"{first} over {other}", "tok/s a user (95 %)", "tok/s in all (95 %)", "tok/s a device")
        yield from ("", f"| {' | '.join(names)} |", "|---" * len(names) + "|")
        for each in figures.ratios(first, other):
            yield f"| {each.level} | {each.user_rate} | {each.throughput} | {each.per_device:.2f} |"


_COLOURS = ("ssd-0", "ar-0", "sd-0", "good")
_PANEL, _PITCH, _TOP = 260, 320, 34


def load_plot(figures: LoadFigures) -> str:
    """Tokens a second in all and for each user, by level, a line for each endpoint."""
    rows, names = figures.rows(), [each.name for each in figures.settings.endpoints]
    panels = [
        (title, value, levels)
        for kind in ("users", "rate")
        if (levels := [each for each in figures.settings.levels if each.kind == kind])
        for title, value in _VALUES
    ]
    drawing = Drawing(len(panels) * _PITCH + _TOP, "tokens a second by load")
    for place, (title, value, levels) in enumerate(panels):
        drawn = [
            Line(name, _COLOURS[names.index(name) % len(_COLOURS)], points)
            for name in names
            if (
                points := [
                    _point(row, value(row)) for row in rows if row.endpoint == name and row.level in levels
                ]
            )
        ]
        top = _TOP + place * _PITCH
        lines(drawing, drawn, [str(level) for level in levels], title, top=top, bottom=top + _PANEL)
    return drawing.to_svg(alone=True) + "\n"


_VALUES: tuple[tuple[str, Callable[[LevelFigures], Estimate]], ...] = (
    (
        "output tokens a second, all users together",
        lambda row: Estimate(value=row.throughput, count=row.num_requests),
    ),
    ("tokens a second that a user sees, with 95 % intervals", lambda row: row.user_rate),
)


def _point(row: LevelFigures, found: Estimate) -> Point:
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return Point(str(row.level), found.value, f"{row.level}: {number(found.value)} tok/s", interval)


def _spelled(found: Percentiles, spelling: str, scale: float = 1) -> str:
    return " / ".join(spelling.format(scale * each) for each in (found.p50, found.p90, found.p99))
