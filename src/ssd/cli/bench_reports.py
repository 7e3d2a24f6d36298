"""`ssd bench report`: a run as a Markdown page, and as tables in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ssd.cli.console import user_errors
from ssd.cli.options import with_options

if TYPE_CHECKING:
    from ssd.bench.summary import RunFigures

_RUN_HELP = "The run's folder, as given to --run."
_SHOWN_DIFFERENCES = 10


@with_options
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN_HELP)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for report.md; default: the run's own folder.")
    ] = None,
) -> None:
    """Write a run's verdict and figures as Markdown (report.md).

    Example:

        ssd bench report runs/first
    """
    with user_errors():
        from ssd.bench.folder import RunFolder
        from ssd.bench.report import write_report
        from ssd.bench.summary import RunFigures

        figures = RunFigures(RunFolder(folder))
        typer.echo(write_report(figures, out or folder))
        stderr = Console(stderr=True, highlight=False, soft_wrap=True)
        code = _show_equality(stderr, figures)
        _show_verdicts(stderr, figures)
    raise typer.Exit(code)


def show_run(folder: Path) -> int:
    """Show a run's tables. Returns the exit code: 1 if outputs of a deterministic run differ."""
    from ssd.bench.columns import SHORT
    from ssd.bench.facts import RATIOS
    from ssd.bench.folder import RunFolder
    from ssd.bench.report import run_tables
    from ssd.bench.summary import RunFigures
    from ssd.cli.console import shown

    console, figures = Console(highlight=False), RunFigures(RunFolder(folder))
    for table in run_tables(figures, SHORT):
        console.print(shown(table))
    code = _show_equality(console, figures)
    console.print(f"[dim]Medians over prompts; in brackets, 95 % intervals. {RATIOS}[/]")
    _show_verdicts(console, figures)
    console.print(f"[dim]The whole report: ssd bench report {escape(str(folder))}[/]")
    return code


def _show_verdicts(console: Console, figures: RunFigures) -> None:
    from ssd.bench.verdict import verdicts

    for each in verdicts(figures):
        console.print(f"[bold]{escape(each)}[/]")


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
