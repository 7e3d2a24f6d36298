"""How far a run is: a bar with the time left, where there is a terminal to show it on."""

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_of(things: str, console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(f"{things},"),
        TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    return Progress(*columns, console=console, disable=not sys.stderr.isatty())
