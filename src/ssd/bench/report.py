"""A run's report: one HTML page that needs nothing from elsewhere, and the same figures as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ssd.bench.pages import words
from ssd.bench.pages.columns import Column, used_columns
from ssd.bench.pages.drawing import COLOURS, TEXT, css
from ssd.bench.pages.plots import plots, shades
from ssd.bench.summary import RunFigures
from ssd.version import how_to_install


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


@dataclass(frozen=True, slots=True)
class _Part:
    columns: Sequence[Column]
    groups: Sequence[_Group]


def write_report(figures: RunFigures, folder: Path) -> list[Path]:
    """report.html and report.md in a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {folder / "report.html": html_page(figures), folder / "report.md": markdown(figures)}
    for path, text in pages.items():
        path.write_text(text)
    return list(pages)


def html_page(figures: RunFigures) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ValueError(f"the page needs the package jinja2: {how_to_install('bench')}") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string((files("ssd.bench.pages") / "page.html").read_text())
    return template.render(
        title=words.title(figures),
        subtitle=words.subtitle(figures),
        tiles=words.tiles(figures),
        equality=words.equality(figures),
        plots=plots(figures),
        parts=_parts(figures),
        css=f"{css()}\n{TEXT}",
        colours=[name for name in COLOURS if "-" in name],
        roofs=words.roofs(figures),
        facts=words.facts(figures),
    )


def markdown(figures: RunFigures) -> str:
    equality, parts = words.equality(figures), _parts(figures)
    lines = [f"# {words.title(figures)}", "", words.subtitle(figures), "", equality.words, ""]
    lines += [*(f"- {each}" for each in equality.listed), ""] if equality.listed else []
    for groups in zip(*(part.groups for part in parts), strict=True):
        lines += [f"## {groups[0].name}, {groups[0].count} prompts", ""]
        for part, group in zip(parts, groups, strict=True):
            heads = ["case", *(column.title for column in part.columns)]
            lines += _table(heads, [[f"`{row.name}`", *row.cells] for row in group.rows])
    lines += ["Medians over prompts; in brackets, 95 % intervals (order statistics).", ""]
    lines += [f"- **{column.title}**: {column.meaning}" for part in parts for column in part.columns]
    if roofs := words.roofs(figures):
        heads = ["case", "E∞", "T_v, ms (rows)", "T_d, ms (rows)", "E∞/T_v", "1/T_d", "roof", "reached"]
        lines += ["", "## The roof", "", *_table(heads, roofs)]
    facts = [list(fact) for fact in words.facts(figures)]
    lines += ["", "## How it was measured", "", *_table(["what", ""], facts)]
    return "\n".join(lines).rstrip() + "\n"


def _parts(figures: RunFigures) -> list[_Part]:
    return [_Part(each, _groups(figures, each)) for each in used_columns(figures.rows)]


def _groups(figures: RunFigures, columns: Sequence[Column]) -> list[_Group]:
    found, colours = [], shades(figures.cases)
    for dataset in figures.datasets:
        rows = [row for row in figures.rows if row.dataset == dataset]
        shown = [
            _Row(figures.name_of(row.case), colours[row.case.name], [column.cell(row) for column in columns])
            for row in rows
        ]
        found.append(_Group(dataset, max(row.num_prompts for row in rows), shown))
    return found


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|---" * len(heads) + "|"
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]
