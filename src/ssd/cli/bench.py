"""`ssd bench`: the commands that measure. Each lives in a file of its own and is imported when it runs."""

import typer

from ssd.cli.bench_peers import peers
from ssd.cli.bench_reports import compare, report
from ssd.cli.bench_run import run
from ssd.cli.bench_serve import serve_load

bench = typer.Typer(
    name="bench",
    help="Measure: modes side by side, reports with intervals, two runs compared.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
bench.command()(run)
bench.command()(report)
bench.command()(compare)
bench.command()(peers)
bench.command("serve")(serve_load)
