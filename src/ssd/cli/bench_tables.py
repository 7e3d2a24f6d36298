"""A run's figures on the terminal: a table for each data set, and whether the modes wrote the same."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ssd.bench.compare import Comparison, Row
from ssd.bench.figures import Figures
from ssd.bench.folder import RunFolder
from ssd.bench.statistics import Verdict
from ssd.bench.summary import RunFigures

_SHOWN_DIFFERENCES = 10
_VERDICTS: dict[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "no difference that the noise allows": "no difference",
    "too few prompts to tell": "too few prompts",
}


def show_run(folder: Path) -> int:
    """The exit code: 1 where a deterministic run has outputs that differ."""
    console, figures = Console(highlight=False), RunFigures(RunFolder(folder))
    for dataset in figures.datasets:
        table = Table(title=dataset, title_justify="left")
        for name in ("case", "tok/s", "× ar (95 %)", "× best sd (95 %)", "accepted", "hits", "of roof"):
            table.add_column(
                name, justify="left" if name == "case" else "right", no_wrap=name in ("case", "tok/s")
            )
        for row in figures.rows:
            if row.dataset == dataset:
                table.add_row(figures.name_of(row.case), *_cells(row))
        console.print(table)
    code = show_equality(console, figures)
    console.print(f"[dim]The whole report: ssd bench report {escape(str(folder))}[/]")
    return code


def show_equality(console: Console, figures: RunFigures) -> int:
    """In red, and as exit code 1, where the outputs of a deterministic run differ."""
    deterministic, found = figures.manifest.settings.deterministic, figures.equality
    words = escape(found.in_words(deterministic=deterministic))
    is_fault = deterministic and bool(found.differences)
    style = "bold white on red" if is_fault else "yellow" if found.differences else "green"
    console.print(f"[{style}]{words}[/]")
    if is_fault:
        for each in found.differences[:_SHOWN_DIFFERENCES]:
            console.print(f"  [red]{escape(str(each))}[/]")
        if len(found.differences) > _SHOWN_DIFFERENCES:
            console.print(f"  [red]and {len(found.differences) - _SHOWN_DIFFERENCES} more[/]")
    return int(is_fault)


def _cells(row: Figures) -> list[str]:
    return [
        f"{row.rate.value:.2f}",
        str(row.over_ar or "-"),
        str(row.over_sd or "-"),
        f"{row.accepted_per_round:.2f}" if row.case.mode != "ar" else "-",
        "-" if row.hit_rate is None else f"{row.hit_rate:.2f}",
        "-" if row.efficiency is None else f"{row.efficiency:.2f}",
    ]


def _comparison_table(dataset: str, rows: Sequence[Row]) -> Table:
    table = Table(title=dataset, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("case", "tok/s, A → B", "B/A", "beside forwards", "verdict"):
        table.add_column(name, no_wrap=name != "case")
    for row in rows:
        style = {"faster": "green", "slower": "red"}.get(row.verdict, "none")
        rates = f"{row.before:.2f} → {row.after:.2f}"
        beside = str(row.beside_forwards or "-")
        table.add_row(_short(row.case), rates, str(row.ratio), beside, f"[{style}]{_shown(row)}[/]")
    return table


def _shown(row: Row) -> str:
    is_the_machine = row.ratio.verdict in ("faster", "slower") and row.reason
    return "the machine" if is_the_machine else _VERDICTS[row.verdict]


def _short(label: str) -> str:
    """Without what nearly all runs share: greedy, one text at a time."""
    return label.removesuffix("+t0+b1")


def show_comparison(found: Comparison) -> None:
    console = Console(highlight=False)
    console.print(
        "B over A, prompt by prompt, as it is and in units of each run's bare forwards. Intervals hold at 95 "
        f"% for all {len(found.together) + len(found.rows)} rows together: the chance that any of them errs "
        "is at most 5 %. Ratios are medians of those within a prompt, not ratios of medians."
    )
    for rows in filter(None, (found.together, found.rows)):
        for dataset in dict.fromkeys(row.dataset for row in rows):
            of_dataset = [row for row in rows if row.dataset == dataset]
            console.print(_comparison_table(dataset, of_dataset))
            for row in of_dataset:
                if row.reason:
                    console.print(f"[dim]  {_short(row.case)}: {row.reason}[/]")
    if found.forwards is not None:
        console.print(f"The target's bare forward: {found.forwards} as fast in B as in A.")
    for note in found.notes:
        console.print(f"[yellow]Note: {escape(note)}[/]")
