"""What commands print beside their results: errors of the user, and tables; and the engine they load.

Waits are in progress.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ssd.bench.tables import Table
from ssd.cli.progress import loading
from ssd.config import DraftConfig

if TYPE_CHECKING:
    from ssd.engine.llm import LLM


def _show(message: str) -> None:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)


@contextmanager
def user_errors(show: Callable[[str], None] = _show) -> Iterator[None]:
    """Show ValueError, and OSError about a file, as one sentence without a traceback; exit code 2.

    Anything else is a bug and keeps its traceback. `show` prints the message.
    """
    try:
        yield
    except ValueError as error:
        show(str(error))
        raise typer.Exit(2) from None
    except OSError as error:
        if error.filename is None:
            raise
        show(f"{error.filename}: {error.strerror}: check the path and your rights there, or name another")
        raise typer.Exit(2) from None


def require_place(flag: str, path: Path) -> None:
    """Check that a file can be written, before the work whose result it will hold."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{flag} {path}: there is no folder {folder}: make it, or name another place")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{flag} {path} cannot be written: name another file")


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


def load_llm(model: str, settings: dict[str, Any]) -> LLM:
    """The engine that generate and chat run in their own process."""
    from ssd.models.hub import local_model, model_title

    # Download first: the hub shows its own progress bars, and torch is not imported yet.
    path = local_model(model, hf_cache=settings.get("hf_cache"))
    then = "starting"
    if "draft" in settings:
        draft = DraftConfig.from_settings(settings["draft"])
        then = f"connecting to the draft at {draft.model}"
        if not draft.is_elsewhere:
            then = f"starting the draft {model_title(draft.model)}"
            draft = replace(draft, model=local_model(draft.model, hf_cache=settings.get("hf_cache")))
        settings = {**settings, "draft": draft}
    with loading(model_title(model), then=then) as show_progress:
        from ssd.engine.llm import LLM

        return LLM(path, show_progress=show_progress, **settings)
