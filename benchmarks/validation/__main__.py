"""`python -m benchmarks.validation`: predictions beside measurements of others and ours."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.validation.published import Row, measured_rows, published_rows
from ssd.bench.tables import Column, Table
from ssd.cli.console import shown

_COLUMNS = (
    Column[Row]("what", lambda row: row.what, is_text=True),
    Column[Row]("given", lambda row: row.given, is_text=True),
    Column[Row]("measured", lambda row: f"{row.measured:.4g}"),
    Column[Row]("predicted", lambda row: f"{row.predicted:.4g}"),
    Column[Row]("error", lambda row: f"{row.error:+.1%}"),
    Column[Row]("aim", lambda row: f"±{row.limit:.0%}"),
)

app = typer.Typer(add_completion=False)


@app.command()
def validate(*, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Predictions of the plan beside what was measured."""
    rows = [*published_rows(), *measured_rows()]
    if as_json:
        each = [dataclasses.asdict(row) | {"error": row.error, "is_within": row.is_within} for row in rows]
        typer.echo(json.dumps(each, indent=1))
        return
    console = Console(highlight=False)
    for table in _tables(rows):
        console.print(shown(table))


def _tables(rows: Sequence[Row]) -> list[Table[Row]]:
    groups = {group: [row for row in rows if row.group == group] for group in (row.group for row in rows)}
    return [
        Table(_COLUMNS, found, group, lambda row: "" if row.is_within else "bold yellow")
        for group, found in groups.items()
    ]


if __name__ == "__main__":
    app()
