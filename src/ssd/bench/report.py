"""A run's report: one HTML page that needs nothing from elsewhere, and the same figures as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ssd.bench.figures import RunFigures
from ssd.bench.pages import words
from ssd.bench.pages.colours import Colours
from ssd.bench.pages.columns import Column, used_columns
from ssd.bench.pages.plots import plots


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    css: str
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    count: int
    rows: Sequence[_Row]


def write_report(figures: RunFigures, folder: Path) -> list[Path]:
    """report.html and report.md in a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / "report.html": html_page(figures), folder / "report.md": markdown(figures)}
    for path, text in pages.items():
        path.write_text(text)
    return list(pages)


def html_page(figures: RunFigures) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string((files("ssd.bench.pages") / "page.html").read_text())
    colours = Colours(figures.cases, figures.name_of)
    columns = used_columns(figures.rows)
    return template.render(
        title=words.title(figures),
        subtitle=words.subtitle(figures),
        tiles=words.tiles(figures),
        equality=words.equality(figures),
        plots=plots(figures, colours),
        columns=columns,
        groups=_groups(figures, columns, colours),
        roofs=words.roofs(figures),
        facts=words.facts(figures),
    )


def markdown(figures: RunFigures) -> str:
    columns = used_columns(figures.rows)
    equality = words.equality(figures)
    lines = [f"# {words.title(figures)}", "", words.subtitle(figures), "", equality.words, ""]
    lines += [*(f"- {each}" for each in equality.listed), ""] if equality.listed else []
    for group in _groups(figures, columns, Colours(figures.cases, figures.name_of)):
        lines += [f"## {group.name}, {group.count} prompts", ""]
        lines += _table(
            ["case", *(each.title for each in columns)], [[f"`{row.name}`", *row.cells] for row in group.rows]
        )
    lines += ["Medians over prompts; in brackets, 95 % bootstrap intervals.", ""]
    lines += [f"- **{column.title}**: {column.meaning}" for column in columns] + [""]
    if roofs := words.roofs(figures):
        heads = ["case", "E∞", "T_v, ms (rows)", "T_d, ms (rows)", "E∞/T_v", "1/T_d", "roof", "reached"]
        lines += ["## The roof", "", *_table(heads, roofs)]
    lines += [
        "## How it was measured",
        "",
        *_table(["what", ""], [list(fact) for fact in words.facts(figures)]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _groups(figures: RunFigures, columns: Sequence[Column], colours: Colours) -> list[_Group]:
    found = []
    for dataset in figures.datasets:
        rows = [row for row in figures.rows if row.dataset == dataset]
        shown = [
            _Row(colours.name(row.case), colours.css(row.case), [column.cell(row) for column in columns])
            for row in rows
        ]
        found.append(_Group(dataset, max(row.rate.count for row in rows), shown))
    return found


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|---" * len(heads) + "|"
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]
