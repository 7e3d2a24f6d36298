"""Tables and progress bars on the terminal."""

import sys
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable

from ssd.bench.tables import Table

_Row = TypeVar("_Row")


def shown(table: Table[_Row]) -> RichTable:
    made = RichTable(
        title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in table.columns:
        made.add_column(escape(column.title), justify="left" if column.is_text else "right")
    for row, cells in zip(table.rows, table.cells(), strict=True):
        made.add_row(*map(escape, cells), style=table.mark(row) or None)
    return made


def progress_of(things: str, console: Console) -> Progress:
    """A progress bar with the time left; disabled without a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(f"{things},"),
        TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    return Progress(*columns, console=console, disable=not sys.stderr.isatty())
