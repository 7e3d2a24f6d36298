"""Writes a run's report as Markdown: the verdict first, then the tables that support it."""

from collections.abc import Sequence
from pathlib import Path

from ssd.bench import facts
from ssd.bench.columns import PARTS
from ssd.bench.figures import Figures
from ssd.bench.summary import RunFigures
from ssd.bench.tables import Column, Table, used
from ssd.bench.tables import markdown as as_markdown
from ssd.bench.verdict import verdicts

_SHOWN_DIFFERENCES = 20


def write_report(figures: RunFigures, folder: Path) -> Path:
    """Writes report.md to a folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "report.md"
    text.write_text(markdown(figures))
    return text


def markdown(figures: RunFigures) -> str:
    deterministic, found = figures.manifest.settings.deterministic, figures.equality
    parts, roofs = _parts(figures), facts.roofs(figures)
    lines = [f"# {facts.title(figures)}", "", *(f"**{each}**\n" for each in verdicts(figures))]
    lines += [facts.subtitle(figures), "", found.in_words(deterministic=deterministic), ""]
    lines += [f"- {each}" for each in found.differences[:_SHOWN_DIFFERENCES]]
    for tables in zip(*parts, strict=True):
        lines += ["", f"## {tables[0].title}", "", *(line for table in tables for line in as_markdown(table))]
    lines += [f"Medians over prompts; in brackets, 95 % intervals (order statistics). {facts.RATIOS}", ""]
    meant = (column for tables in parts for column in tables[0].columns if column.meaning)
    lines += [f"- **{column.title}**: {column.meaning}" for column in meant]
    if guesses := facts.guesses(figures):
        lines += ["", "## The draft's guesses", "", *guesses]
    if roofs.rows:
        lines += ["", "## The roof", "", facts.about_roofs(figures), "", *as_markdown(roofs)]
    lines += ["", "## How it was measured", "", *as_markdown(Table(facts.FACTS, facts.facts(figures)))]
    return "\n".join(lines).rstrip() + "\n"


def _parts(figures: RunFigures) -> list[list[Table[Figures]]]:
    """Tables of speed, drafting and cost, each with one table per data set."""
    return [run_tables(figures, columns) for columns in (used(each, figures.rows) for each in PARTS)]


def run_tables(figures: RunFigures, columns: Sequence[Column[Figures]]) -> list[Table[Figures]]:
    """One table for each data set, and one for all of them together."""
    case = Column[Figures]("case", lambda row: figures.name_of(row.case), is_text=True)
    tables = []
    for dataset in figures.datasets:
        rows = [row for row in figures.rows if row.dataset == dataset]
        title = f"{dataset}, {max(row.num_prompts for row in rows)} prompts"
        tables.append(Table([case, *columns], rows, title))
    return tables
