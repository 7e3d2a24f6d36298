"""`ssd doctor`: shows installed packages, devices, models and what SSD would use.

Prints tables, or JSON for programs and bug reports. With `--selftest`, runs checks and prints a result each.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ssd.cli.console import user_errors
from ssd.cli.diagnosis import Diagnosis, InstalledPackage, Model, diagnose
from ssd.cli.machine import has_mps
from ssd.cli.options import with_options
from ssd.cli.pair_facts import pair_facts, pair_models
from ssd.models.names import path_or_hub_name
from ssd.version import __version__

if TYPE_CHECKING:
    from ssd.models.config import ModelConfig
    from ssd.selftest.results import CheckResult

_STYLES = {"ok": "green", "not run": "dim"}


@with_options
def doctor(
    hf_cache: Annotated[
        str | None, typer.Option(envvar="SSD_HF_CACHE", help="Folder for models from the hub.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs and bug reports.")
    ] = False,
    selftest: Annotated[
        bool,
        typer.Option(
            "--selftest", help="Compare kernels with torch, time a draft step, and show nothing else."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="Device of the self-test: auto, cpu, cuda:0 …")] = "auto",
    model: Annotated[
        str | None,
        typer.Option(help="A target: show its device, whether it fits, and with --draft whether SSD pays."),
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Its draft, in mode ssd.")] = None,
) -> None:
    """Show what is installed, this machine, the downloaded models, and what SSD will use.

    Takes a few seconds, because memory bandwidth is measured. Progress is printed on standard error.
    """
    if selftest:
        with user_errors():
            _selftest(device, pair_models(model, draft, hf_cache), as_json=as_json)
        return
    stderr = Console(stderr=True, highlight=False)

    def say(what: str) -> None:
        stderr.print(f"[dim]{escape(what)}[/]")

    with user_errors():
        for each in filter(None, (model, draft)):
            path_or_hub_name(each)
        say("importing torch")
        seats = pair_facts(model, draft, hf_cache, say)
    found = diagnose(hf_cache, seats, say)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        _show(found, Console())


def _selftest(name: str, pair: "tuple[ModelConfig, ModelConfig] | None", *, as_json: bool) -> None:
    """Print results as they arrive; exit code 1 if a check failed."""
    from ssd.runtime.host import resolve_device
    from ssd.selftest.run import self_test

    device, console = resolve_device(name), Console(highlight=False)
    if not as_json:
        console.print(f"[bold]ssd {__version__}[/], self-test on {device}")
    lines = []
    for line in self_test(device, pair, has_mps=has_mps()):
        lines.append(line)
        if not as_json:
            _say(line, console)
    if as_json:
        found = {"device": str(device), "lines": [asdict(each) for each in lines]}
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    if any(line.is_failure for line in lines):
        raise typer.Exit(1)


def _say(line: "CheckResult", console: Console) -> None:
    style = _STYLES.get(line.verdict, "bold red")
    why = f" ({line.why})" if line.why else ""
    console.print(
        f"{line.part:14} {line.what:28} [{style}]{line.verdict}[/]: {escape(line.found + why)}",
        soft_wrap=True,
    )


def _show(found: Diagnosis, console: Console) -> None:
    console.print(f"[bold]ssd {found.ssd}[/] on Python {found.python}, {found.system}")
    console.print(_packages(found.packages))
    console.print(_machine(found))
    if found.seats:
        console.print(_placement_table(found.seats))
    console.print(_models(found.hub_cache, found.models))


def _packages(packages: tuple[InstalledPackage, ...]) -> Table:
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


def _placement_table(seats: Mapping[str, str]) -> Table:
    table = Table("model", "device, and whether it fits", title="Placement", title_justify="left")
    for who, words in seats.items():
        table.add_row(who, escape(words), style=_style_of(words))
    return table


def _style_of(words: str) -> str | None:
    if "not fit" in words:
        return "red"
    return "yellow" if "does not pay" in words else None


def _models(folder: str, models: tuple[Model, ...]) -> Table:
    table = Table("model", "size", title=f"Models in {escape(folder)}", title_justify="left", min_width=40)
    for each in models:
        table.add_row(each.name, f"{each.bytes / 1e9:.1f} GB")
    if not models:
        table.add_row("none yet", "")
    return table
