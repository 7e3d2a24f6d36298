"""Tables as Markdown, from a description of their columns.

cli/console.py shows them on a terminal. Does not know figures.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

NOTHING = "–"
Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    title: str
    cell: Callable[[Row], str]
    meaning: str = ""
    is_text: bool = False
    """Text is aligned to the left, numbers to the right."""


@dataclass(frozen=True)
class Table(Generic[Row]):
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    title: str = ""
    mark: Callable[[Row], str] = lambda _: ""
    """How a row is marked: a style of the terminal; empty: not marked."""

    def cells(self) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows]


def used(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """The columns that are not empty in all rows."""
    return [each for each in columns if any(each.cell(row) != NOTHING for row in rows)]


def markdown(table: Table[Row]) -> list[str]:
    lines = [[column.title for column in table.columns], ["---"] * len(table.columns), *table.cells()]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def number(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def maybe(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
