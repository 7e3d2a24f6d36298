"""A run among peers on the terminal, and the commands that make the peers."""

from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.peers.figures import PeersFigures
from benchmarks.peers.records import PeersFolder
from benchmarks.peers.registry import peer_named, setup_commands
from benchmarks.peers.report import COLUMNS, NUM_NAMES, cells, verdict_lines, write_report


def show_peers(folder: PeersFolder) -> None:
    console, figures = Console(highlight=False), PeersFigures(folder.records())
    for dataset in figures.tables:
        table = Table(title=dataset, title_justify="left")
        for place, name in enumerate(COLUMNS):
            table.add_column(name, justify="left" if place < NUM_NAMES else "right")
        for row in figures.rows(dataset):
            table.add_row(*cells(row))
        console.print(table)
    for line in verdict_lines(figures):
        console.print(line, soft_wrap=True)
    write_report(folder)
    console.print(f"[dim]The same as Markdown: {escape(str(folder.path / 'report.md'))}[/]")


def show_setup(model: str, draft: str | None, names: list[str], converted: Path | None) -> None:
    for name in names:
        peer = peer_named(name)
        typer.echo(f"# {peer.title}")
        for line in setup_commands(peer, model, draft, converted):
            typer.echo(line)
        typer.echo(
            f"# then: --peer-python {name}=venvs/{name}/bin/python, or SSD_PEER_{name.upper()}_PYTHON\n"
        )
