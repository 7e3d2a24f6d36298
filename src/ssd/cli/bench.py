"""`ssd bench`: the commands that measure. Each lives in a file of its own and is imported when it runs."""

import typer

from ssd.cli.bench_reports import compare, report
from ssd.cli.bench_run import run
from ssd.cli.help import Command

bench = typer.Typer(
    name="bench",
    help="Measure: modes side by side, reports with intervals, two runs compared.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
bench.command(cls=Command)(run)
bench.command(cls=Command)(report)
bench.command(cls=Command)(compare)
