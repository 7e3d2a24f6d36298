"""The conclusion of a run in one sentence: which case is the fastest, if these records can tell.

Knows figures and their intervals. Every ratio that it names is a cell of the report's table, on all prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.bench.cases import Case
from ssd.bench.statistics import Estimate, least_count
from ssd.bench.summary import RunFigures
from ssd.processes.other_load import BUSY

_BUSY_REMEDY = "end them and measure again in another folder"


@dataclass(frozen=True, slots=True)
class _Compared:
    case: Case
    over_plain: Estimate

    def named(self, figures: RunFigures) -> str:
        return f"{figures.name_of(self.case)} ({self.over_plain} × ar)"


def verdicts(figures: RunFigures) -> list[str]:
    """A sentence for each temperature and batch size."""
    load = figures.other_load
    if load is not None and load > BUSY:
        return [
            f"This machine was busy: other programs took {load:.0%} of the cores' time, so no case can be "
            f"called the fastest; {_BUSY_REMEDY}."
        ]
    found = [_verdict(figures, *each) for each in figures.slices]
    if load is None:
        found.append(
            "Nobody can tell whether this machine was busy: the system does not report it, or an older "
            "version made this run."
        )
    return found


def _verdict(figures: RunFigures, temperature: float, batch_size: int) -> str:
    cases = [
        each for each in figures.cases if (each.temperature, each.batch_size) == (temperature, batch_size)
    ]
    plain = next((each for each in cases if each.mode == "ar" and not each.all_cores), None)
    where = f"Temperature {temperature:g}, batch size {batch_size}: " if len(figures.slices) > 1 else ""
    if plain is None:
        return (
            f"{where}the case ar was not measured, so nothing says whether drafting pays: add it to --cases."
        )
    compared = [
        _Compared(each, ratio)
        for each in cases
        if each is not plain and (ratio := figures.over(each, plain)) is not None
    ]
    if not compared:
        return f"{where}only one case was measured: there is nothing to compare."
    count, least = min(each.over_plain.count for each in compared), least_count(figures.confidence(plain))
    if count < least:
        what = "prompts" if batch_size == 1 else f"batches of {batch_size}"
        return (
            f"{where}too few prompts to tell: {count} {what} were measured in every case, and intervals for "
            f"{len(cases)} cases need at least {least} (--num-prompts)."
        )
    return where + _conclusion(figures, compared)


def _conclusion(figures: RunFigures, compared: Sequence[_Compared]) -> str:
    faster = [each for each in compared if each.over_plain.verdict == "faster"]
    slower = [each for each in compared if each.over_plain.verdict == "slower"]
    if faster:
        best = max(faster, key=lambda each: each.over_plain.value)
        return _fastest(figures, best, [each for each in compared if each is not best]) + _warning(
            figures, slower
        )
    best = max(compared, key=lambda each: each.over_plain.value)
    if len(slower) == len(compared):
        return f"ar is the fastest; slower than ar, do not use: {_listed(figures, slower)}."
    unclear = [each for each in compared if each not in slower]
    return (
        f"No case is faster than ar. Within noise of it: {_listed(figures, unclear)}"
        f"{_warning(figures, slower)}"
    )


def _fastest(figures: RunFigures, best: _Compared, others: Sequence[_Compared]) -> str:
    alike = [
        each
        for each in others
        if (ratio := figures.over(best.case, each.case)) is None or ratio.verdict != "faster"
    ]
    if not alike:
        return f"{figures.name_of(best.case)} is the fastest: {best.over_plain} × ar"
    return (
        f"{figures.name_of(best.case)} is faster than ar, {best.over_plain} ×, and within noise of "
        f"{_listed(figures, alike)}"
    )


def _warning(figures: RunFigures, slower: Sequence[_Compared]) -> str:
    return f"; slower than ar, do not use: {_listed(figures, slower)}." if slower else "."


def _listed(figures: RunFigures, cases: Sequence[_Compared]) -> str:
    return "; ".join(each.named(figures) for each in cases)
