"""`ssd bench report` and `ssd bench compare`: show a run as pages and tables, and compare two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ssd.cli.console import user_errors
from ssd.cli.options import with_options

if TYPE_CHECKING:
    from ssd.bench.compare import ComparedCase, Comparison
    from ssd.bench.summary import RunFigures

_RUN_HELP = "The run's folder, as given to --run."
_SHOWN_DIFFERENCES = 10


@with_options
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN_HELP)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the pages; default: the run's own folder.")
    ] = None,
) -> None:
    """Write a run's figures as one HTML page (report.html) and as Markdown (report.md).

    Example:

        ssd bench report runs/first
    """
    with user_errors():
        from ssd.bench.folder import RunFolder
        from ssd.bench.report import write_report
        from ssd.bench.summary import RunFigures

        figures = RunFigures(RunFolder(folder))
        for page in write_report(figures, out or folder):
            typer.echo(page)
        code = _show_equality(Console(stderr=True, highlight=False), figures)
    raise typer.Exit(code)


@with_options
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help=_RUN_HELP)],
    after: Annotated[Path, typer.Argument(metavar="B", help="The run to compare with A.")],
) -> None:
    """Compare two runs of the same prompts: B over A, with verdicts that take noise into account.

    Example:

        ssd bench compare runs/before runs/after
    """
    with user_errors():
        from ssd.bench.compare import compare_runs

        _show_comparison(compare_runs(before, after))


def show_run(folder: Path) -> int:
    """Show a run's tables. Returns the exit code: 1 if outputs of a deterministic run differ."""
    from ssd.bench.folder import RunFolder
    from ssd.bench.pages.columns import SHORT
    from ssd.bench.pages.words import RATIOS
    from ssd.bench.report import run_tables
    from ssd.bench.summary import RunFigures
    from ssd.cli.console import shown

    console, figures = Console(highlight=False), RunFigures(RunFolder(folder))
    for table in run_tables(figures, SHORT):
        console.print(shown(table))
    code = _show_equality(console, figures)
    console.print(f"[dim]Medians over prompts; in brackets, 95 % intervals. {RATIOS}[/]")
    console.print(f"[dim]The whole report: ssd bench report {escape(str(folder))}[/]")
    return code


def _show_equality(console: Console, figures: RunFigures) -> int:
    """Show differing outputs. In a deterministic run they are errors: red, and exit code 1."""
    deterministic, found = figures.manifest.settings.deterministic, figures.equality
    is_fault = deterministic and bool(found.differences)
    style = "bold white on red" if is_fault else "yellow" if found.differences else "green"
    console.print(f"[{style}]{escape(found.in_words(deterministic=deterministic))}[/]")
    style = "red" if is_fault else "dim"
    for each in found.differences[:_SHOWN_DIFFERENCES]:
        console.print(f"  [{style}]{escape(str(each))}[/]")
    if len(found.differences) > _SHOWN_DIFFERENCES:
        console.print(f"  [{style}]and {len(found.differences) - _SHOWN_DIFFERENCES} more[/]")
    return int(is_fault)


def _show_comparison(found: Comparison) -> None:
    from ssd.bench.compare import COLUMNS, short_name
    from ssd.bench.tables import Table
    from ssd.cli.console import shown

    console, rows = Console(highlight=False), [*found.together, *found.rows]
    console.print(
        "B over A, prompt by prompt, directly and in units of each run's bare forwards. Intervals hold at 95 "
        f"% for all {len(rows)} rows together: the chance that any of them errs is at most 5 %. Ratios are "
        "medians of those within a prompt, not ratios of medians."
    )
    for dataset in dict.fromkeys(row.dataset for row in rows):
        of_dataset = [row for row in rows if row.dataset == dataset]
        console.print(shown(Table(COLUMNS, of_dataset, dataset, _style)))
        for row in of_dataset:
            if row.reason:
                console.print(f"[dim]  {short_name(row.case)}: {row.reason}[/]")
    if found.forwards is not None:
        console.print(f"The target's bare forward: {found.forwards} as fast in B as in A.")
    for note in found.notes:
        console.print(f"[yellow]Note: {escape(note)}[/]")


def _style(row: ComparedCase) -> str:
    return {"faster": "green", "slower": "red"}.get(row.verdict, "")
