"""Writes a run's report: one self-contained HTML page, and the same figures as Markdown."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from ssd.bench.figures import Figures
from ssd.bench.pages import words
from ssd.bench.pages.columns import PARTS
from ssd.bench.pages.drawing import COLOURS, TEXT, css
from ssd.bench.pages.plots import plots, shades
from ssd.bench.summary import RunFigures
from ssd.bench.tables import Column, Table, html, used
from ssd.bench.tables import markdown as as_markdown
from ssd.version import how_to_install


def write_report(figures: RunFigures, folder: Path) -> list[Path]:
    """Writes report.html and report.md to a folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "report.html", folder / "report.md"
    # Markdown first, since it needs no further package.
    text.write_text(markdown(figures))
    page.write_text(html_page(figures))
    return [page, text]


def html_page(figures: RunFigures) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ValueError(f"the page needs the package jinja2: {how_to_install('bench')}") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string((files("ssd.bench.pages") / "page.html").read_text())
    roofs = words.roofs(figures)
    return template.render(
        title=words.title(figures),
        subtitle=words.subtitle(figures),
        tiles=words.tiles(figures),
        equality=words.equality(figures),
        plots=plots(figures),
        parts=[html(tables) for tables in _parts(figures)],
        roofs=html([roofs]) if roofs.rows else "",
        about_roofs=words.about_roofs(figures),
        facts=words.facts(figures),
        ratios=words.RATIOS,
        css=f"{css()}\n{TEXT}",
        colours=[name for name in COLOURS if "-" in name],
    )


def markdown(figures: RunFigures) -> str:
    equality, parts, roofs = words.equality(figures), _parts(figures), words.roofs(figures)
    lines = [f"# {words.title(figures)}", "", words.subtitle(figures), "", equality.words, ""]
    lines += [*(f"- {each}" for each in equality.listed), ""] if equality.listed else []
    for tables in zip(*parts, strict=True):
        lines += [f"## {tables[0].title}", "", *(line for table in tables for line in as_markdown(table))]
    lines += [f"Medians over prompts; in brackets, 95 % intervals (order statistics). {words.RATIOS}", ""]
    meant = (column for tables in parts for column in tables[0].columns if column.meaning)
    lines += [f"- **{column.title}**: {column.meaning}" for column in meant]
    if roofs.rows:
        lines += ["", "## The roof", "", words.about_roofs(figures), "", *as_markdown(roofs)]
    lines += ["", "## How it was measured", "", *as_markdown(Table(words.FACTS, words.facts(figures)))]
    return "\n".join(lines).rstrip() + "\n"


def _parts(figures: RunFigures) -> list[list[Table[Figures]]]:
    """Tables of speed, drafting and cost, each with one table per data set."""
    colours = shades(figures.cases)
    return [
        [replace(table, mark=lambda row: colours[row.case.name]) for table in run_tables(figures, columns)]
        for columns in (used(each, figures.rows) for each in PARTS)
    ]


def run_tables(figures: RunFigures, columns: Sequence[Column[Figures]]) -> list[Table[Figures]]:
    """One table for each data set, and one for all of them together."""
    case = Column[Figures]("case", lambda row: figures.name_of(row.case), is_text=True)
    tables = []
    for dataset in figures.datasets:
        rows = [row for row in figures.rows if row.dataset == dataset]
        title = f"{dataset}, {max(row.num_prompts for row in rows)} prompts"
        tables.append(Table([case, *columns], rows, title))
    return tables
