"""The program `ssd` and its commands; each command is in its own module."""

import typer

from ssd.cli.bench_reports import compare, report
from ssd.cli.bench_run import run
from ssd.cli.chat import chat
from ssd.cli.doctor import doctor
from ssd.cli.draft import draft
from ssd.cli.generate import generate
from ssd.cli.help import Command
from ssd.cli.plan import plan
from ssd.cli.serve import serve
from ssd.cli.tune import tune
from ssd.version import __version__

app = typer.Typer(
    name="ssd",
    help="Exact LLM decoding, with a draft that works ahead while the target verifies.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command(cls=Command)(generate)
app.command(cls=Command)(chat)
# Arguments after `--` are passed to vLLM.
app.command(cls=Command, context_settings={"allow_extra_args": True})(serve)
app.command(cls=Command)(draft)
app.command(cls=Command)(doctor)
app.command(cls=Command)(plan)
app.command(cls=Command)(tune)
bench = typer.Typer(
    name="bench",
    help="Measure: modes side by side, reports with intervals, two runs compared.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
bench.command(cls=Command)(run)
bench.command(cls=Command)(report)
bench.command(cls=Command)(compare)
app.add_typer(bench)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"ssd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass
