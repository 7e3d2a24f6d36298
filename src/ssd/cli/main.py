"""The program `ssd` and its commands; each command is in its own module."""

import atexit
import gc

import typer

from ssd.cli.bench_reports import report
from ssd.cli.bench_run import run
from ssd.cli.chat import chat
from ssd.cli.doctor import doctor
from ssd.cli.draft import draft
from ssd.cli.generate import generate
from ssd.cli.help import Command
from ssd.cli.plan import plan
from ssd.cli.serve import serve
from ssd.version import __version__

_START = f"""\
SSD {__version__}: exact LLM decoding, with a draft that works ahead while the target verifies.

Try it:
    ssd chat Qwen/Qwen3-1.7B --draft Qwen/Qwen3-0.6B --metrics
Serve it (the API of OpenAI, and a chat at http://127.0.0.1:8000):
    ssd serve Qwen/Qwen3-1.7B --draft Qwen/Qwen3-0.6B
Check this machine:
    ssd doctor

All commands: ssd --help. Options of one: ssd chat --help.
"""
"""Shown without arguments: where to begin."""

app = typer.Typer(
    name="ssd",
    help="Exact LLM decoding, with a draft that works ahead while the target verifies.",
    invoke_without_command=True,
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
bench = typer.Typer(
    name="bench",
    help="Measure: modes side by side, and a report with intervals.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
bench.command(cls=Command)(run)
bench.command(cls=Command)(report)
app.add_typer(bench)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"ssd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    # At its end Python searches all objects for cycles, which takes a second of silence after torch.
    atexit.register(gc.freeze)
    if context.invoked_subcommand is None:
        typer.echo(_START)
