"""User errors on a terminal: one sentence with its remedy, no traceback, exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape


@contextmanager
def user_errors() -> Iterator[None]:
    """Turns ValueError, which says what to do, into a message; anything else is a bug and stays loud."""
    try:
        yield
    except ValueError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(2) from None
