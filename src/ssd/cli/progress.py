"""Shows that a command is waiting, on standard error.

On a terminal: a spinner, and bars while models load. Elsewhere, such as in a pipe or a log: one plain line
for each wait that takes longer than two seconds. Knows no models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column as RichColumn

from ssd.processes.terminal import escaped

if TYPE_CHECKING:
    from ssd.models.weights import ProgressBar, ShowProgress

_LONG = 2.0
"""Seconds of a wait after which it is shown."""
READING = "reading the prompt"
"""What happens until the first token."""
_Item = TypeVar("_Item")


def progress_of(things: str, console: Console) -> Progress:
    """A progress bar with the time left; disabled without a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(f"{things},"),
        TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    return Progress(*columns, console=console, disable=not sys.stderr.isatty())


@contextmanager
def loading(what: str, then: str) -> Iterator[ShowProgress]:
    """Shows the loading of models; between and after them, a wait with the text `then`."""
    if not sys.stderr.isatty():
        lines = PlainWaits(f"opening {what}")
        try:
            yield lines.bars(then)
        finally:
            lines.end()
        return
    # A name that is too long must not push the spinner and the time off the line.
    text = TextColumn(
        "{task.description}",
        markup=False,
        table_column=RichColumn(no_wrap=True, overflow="ellipsis", ratio=1),
    )
    columns = (SpinnerColumn(), text, BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        bars = _Bars(progress, progress.add_task(f"opening {what}", total=None), then)
        yield bars.make


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Shows one wait of unknown length, if it is long."""
    if not sys.stderr.isatty():
        lines = PlainWaits(what)
        try:
            yield
        finally:
            lines.end()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.add_task(escaped(what), total=None)
    timer = _later(progress.start)
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


def after_wait(stream: Iterator[_Item], what: str) -> Iterator[_Item]:
    """The items of a stream; the time until the first one is shown as a wait."""
    with waiting(what):
        first = next(stream, None)
    if first is not None:
        yield first
        yield from stream


class PlainWaits:
    """Prints a line for each wait that takes long."""

    def __init__(self, what: str) -> None:
        self._timer = _line_later(what)

    def bars(self, then: str) -> Callable[[str, int], ProgressBar]:
        """Makes bars as tqdm does; each is a wait, and the wait after it is called `then`."""
        return lambda description, _total: _PlainBar(self._begin, description, then)

    def end(self) -> None:
        self._timer.cancel()

    def _begin(self, what: str) -> None:
        self._timer.cancel()
        self._timer = _line_later(what)


def _line_later(what: str) -> Timer:
    return _later(lambda: typer.echo(f"ssd: {escaped(what)} …", err=True))


def _later(show: Callable[[], None]) -> Timer:
    timer = Timer(_LONG, show)
    timer.daemon = True
    timer.start()
    return timer


class _PlainBar:
    def __init__(self, begin: Callable[[str], None], description: str, then: str) -> None:
        self._begin, self._then = begin, then
        begin(description)

    def update(self, n: int, /) -> None:
        """Its line has no number."""

    def close(self) -> None:
        self._begin(self._then)


class _Bars:
    def __init__(self, progress: Progress, waiting: TaskID, then: str) -> None:
        self._progress, self._waiting, self._then = progress, waiting, then

    def make(self, description: str, total: int) -> _Bar:
        self._progress.update(self._waiting, visible=False)
        return _Bar(self._progress, self._progress.add_task(description, total=total), self._closed)

    def _closed(self) -> None:
        self._progress.update(self._waiting, description=self._then, visible=True)


class _Bar:
    def __init__(self, progress: Progress, task: TaskID, closed: Callable[[], None]) -> None:
        self._progress, self._task, self._closed = progress, task, closed

    def update(self, n: int, /) -> None:
        self._progress.advance(self._task, n)

    def close(self) -> None:
        self._progress.remove_task(self._task)
        self._closed()
