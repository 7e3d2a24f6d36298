"""Shows user errors as one sentence with a remedy, without a traceback; exit code 2."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape


def _show(message: str) -> None:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)


@contextmanager
def user_errors(show: Callable[[str], None] = _show) -> Iterator[None]:
    """Show ValueError, and OSError about a file, as a message and exit.

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
