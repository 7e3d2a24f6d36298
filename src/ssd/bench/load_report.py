"""A load run as Markdown with a plot beside it: report.md and load.svg in the run's folder."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ssd.bench.load_figures import LevelFigures, LevelRatio, LoadFigures, Percentiles, in_words
from ssd.bench.pages.drawing import Drawing, Line, Point, lines
from ssd.bench.statistics import Estimate
from ssd.bench.tables import Column, Table, markdown, maybe, number, used

_LEVEL = Column[LevelFigures]("level", lambda row: str(row.level), is_text=True)
_ENDPOINT = Column[LevelFigures]("endpoint", lambda row: row.endpoint, is_text=True)
_IN_ALL = Column[LevelFigures]("tok/s in all", lambda row: f"{row.throughput:.1f}")
_OF_USER = Column[LevelFigures]("tok/s a user (95 %)", lambda row: str(row.user_rate))
_OF_DEVICE = Column[LevelFigures]("tok/s a device", lambda row: f"{row.per_device:.1f}")
_CUT_OFF = Column[LevelFigures]("cut off", lambda row: str(row.num_unfinished))
COLUMNS: Sequence[Column[LevelFigures]] = (
    _LEVEL,
    _ENDPOINT,
    _IN_ALL,
    _OF_USER,
    Column("first token p50 / p90 / p99, s", lambda row: _spelled(row.wait, "{:.2f}")),
    Column("ms a token p50 / p90 / p99", lambda row: _spelled(row.per_token, "{:.1f}", scale=1000)),
    _OF_DEVICE,
    Column(
        "failed", lambda row: f"{row.num_failed} of {row.num_requests + row.num_failed + row.num_unfinished}"
    ),
    _CUT_OFF,
    Column("cost of a million tokens", lambda row: maybe(row.cost)),
)
SHORT = (
    _LEVEL,
    _ENDPOINT,
    _IN_ALL,
    _OF_USER,
    _OF_DEVICE,
    Column[LevelFigures]("first, s", lambda row: f"{row.wait.p50:.2f}"),
    Column[LevelFigures]("failed", lambda row: str(row.num_failed)),
    _CUT_OFF,
)
"""For a terminal: medians."""


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
        "median of requests in a round; intervals are over rounds, and each level is judged by itself. "
        "Requests cut off at the end of a level's time are in no figure but their own."
    )
    yield ""
    for endpoint in settings.endpoints:
        said = [f"{endpoint.devices:g} device{'s' * (endpoint.devices != 1)}"]
        said += [f"{name}: {value}" for name, value in endpoint.body.items()]
        yield f"- {endpoint.name}: {endpoint.model} at {endpoint.url}, {', '.join(said)}"
    yield from ("", "![throughput and rate by load](load.svg)", "")
    for kind in ("users", "rate"):
        rows = [row for row in figures.rows() if row.level.kind == kind]
        if rows:
            yield from markdown(Table(used(COLUMNS, figures.rows()), rows))
    yield from (f"- {line}" for line in verdicts(figures))
    first, *others = (each.name for each in settings.endpoints)
    for other in others:
        columns = (
            Column[LevelRatio](f"{first} over {other}", lambda each: str(each.level)),
            Column[LevelRatio]("tok/s a user (95 %)", lambda each: str(each.user_rate)),
            Column[LevelRatio]("tok/s in all (95 %)", lambda each: str(each.throughput)),
            Column[LevelRatio]("tok/s a device", lambda each: f"{each.per_device:.2f}"),
        )
        yield from ("", *markdown(Table(columns, figures.ratios(first, other))))


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
    return Point(str(row.level), found.value, f"{row.level}: {number(found.value)} tok/s", found.interval)


def _spelled(found: Percentiles, spelling: str, scale: float = 1) -> str:
    return " / ".join(spelling.format(scale * each) for each in (found.p50, found.p90, found.p99))
