"""`ssd bench report` and `ssd bench compare`: what runs say, as pages and as a verdict."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ssd.cli.errors import user_errors
from ssd.cli.options import with_options

_RUN_HELP = "The folder of a run: what --run named."


@with_options
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN_HELP)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the pages go; the run's own folder.")
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
        from ssd.cli.bench_tables import show_equality

        figures = RunFigures(RunFolder(folder))
        for page in write_report(figures, out or folder):
            typer.echo(page)
        code = show_equality(Console(stderr=True, highlight=False), figures)
    raise typer.Exit(code)


@with_options
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help=_RUN_HELP)],
    after: Annotated[Path, typer.Argument(metavar="B", help="The one that may be faster.")],
) -> None:
    """Compare two runs of the same prompts: B over A, with a verdict that knows about noise.

    Example:

        ssd bench compare runs/before runs/after
    """
    with user_errors():
        from ssd.bench.compare import compare_runs
        from ssd.cli.bench_tables import show_comparison

        show_comparison(compare_runs(before, after))
