"""`python -m benchmarks.validation`: predictions beside measurements of others and ours, or beside a run.

python -m benchmarks.validation
python -m benchmarks.validation --run runs/mine      # a folder of `ssd bench run`
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.validation.published import Row, measured_rows, published_rows
from benchmarks.validation.run_rows import run_rows
from ssd.bench.folder import RunFolder
from ssd.bench.tables import Column, Table
from ssd.cli.errors import user_errors
from ssd.cli.tables import shown

_KEPT = "None of this was measured here: --run RUN predicts a run of `ssd bench run` on this machine."
_OF_RUN = (
    "Contention is how much longer verifications and draft steps took in the run than bare ones: measured, "
    "not predicted. Runs that do not keep which guess was right have --coverage for it."
)
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
def validate(
    run: Annotated[Path | None, typer.Option(metavar="RUN", help="A folder of `ssd bench run`.")] = None,
    coverage: Annotated[
        float, typer.Option(help="How often another guess is right, for runs that do not say.")
    ] = 0.75,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Predictions of the plan beside what was measured."""
    with user_errors():
        if run is None:
            rows, said = [*published_rows(), *measured_rows()], _KEPT
        else:
            rows, said = run_rows(RunFolder(run), coverage=coverage), _OF_RUN
    if as_json:
        each = [dataclasses.asdict(row) | {"error": row.error, "is_within": row.is_within} for row in rows]
        typer.echo(json.dumps(each, indent=1))
        return
    console = Console(highlight=False)
    for table in _tables(rows):
        console.print(shown(table))
    console.print(said)


def _tables(rows: Sequence[Row]) -> list[Table[Row]]:
    groups = {group: [row for row in rows if row.group == group] for group in (row.group for row in rows)}
    return [
        Table(_COLUMNS, found, group, lambda row: "" if row.is_within else "bold yellow")
        for group, found in groups.items()
    ]


if __name__ == "__main__":
    app()
