"""`ssd doctor`: what is installed, which devices there are, which models, and what would be used.

Shows one diagnosis, as tables for people or as JSON for programs and reports of faults.
"""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ssd.cli.diagnosis import Diagnosis, Model, Package, diagnose
from ssd.cli.options import with_options


@with_options
def doctor(
    hf_cache: Annotated[
        str | None, typer.Option(envvar="SSD_HF_CACHE", help="Where models of the hub are kept.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The same as JSON: for programs, and for reports of faults.")
    ] = False,
) -> None:
    """Show what is installed, what this machine and the cache of models have, and what SSD will use.

    Takes a few seconds: how fast memory is read decides how fast a CPU decodes, and is measured.
    """
    found = diagnose(hf_cache)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        _show(found, Console())


def _show(found: Diagnosis, console: Console) -> None:
    console.print(f"[bold]ssd {found.ssd}[/] on Python {found.python}, {found.system}")
    console.print(_packages(found.packages))
    console.print(_machine(found))
    console.print(_models(found.hub_cache, found.models))


def _packages(packages: tuple[Package, ...]) -> Table:
    table = Table("package", "version", "for", title="Installed", title_justify="left")
    for each in packages:
        job = f"{each.job}: [yellow]{escape(each.trouble)}[/]" if each.trouble else each.job
        table.add_row(each.name, each.version or "[yellow]not installed[/]", job)
    return table


def _machine(found: Diagnosis) -> Table:
    table = Table("what", "found", title="This machine", title_justify="left")
    for what, words in found.machine.items():
        table.add_row(what, escape(words))
    table.add_row("will use", f"[green]{found.device}[/], [green]{found.dtype}[/]")
    return table


def _models(shelf: str, models: tuple[Model, ...]) -> Table:
    table = Table("model", "size", title=f"Models in {escape(shelf)}", title_justify="left", min_width=40)
    for each in models:
        table.add_row(each.name, f"{each.bytes / 1e9:.1f} GB")
    if not models:
        table.add_row("none yet", "")
    return table
