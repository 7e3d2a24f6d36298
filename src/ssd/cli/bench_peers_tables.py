"""A run among peers on the terminal, and the commands that make the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from ssd.bench.peers.records import PeersFolder


def show_peers(folder: PeersFolder) -> None:
    from ssd.bench.peers.figures import PeersFigures
    from ssd.bench.peers.report import COLUMNS, NUM_NAMES, cells, verdict_lines, write_report

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
    from ssd.bench.peers.registry import peer_named, setup_commands

    for name in names:
        peer = peer_named(name)
        typer.echo(f"# {peer.title}")
        for line in setup_commands(peer, model, draft, converted):
            typer.echo(line)
        typer.echo(
            f"# then: --peer-python {name}=venvs/{name}/bin/python, or SSD_PEER_{name.upper()}_PYTHON\n"
        )
