"""Runners that sleep where a model would compute, and answer by a rule (ruled.py): times that can be chosen.

The draft's forward takes its thread, as on a CPU. The target's goes on by itself, as on a GPU: the host has
time until it is over. Knows no engine and no line.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from benchmarks.ruled import RuledModel, logits_of
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Tables, TreeRows
from ssd.runtime.runner import FinishedStep, InFlightStep
from tests.row_runner import RowRunner

T = TypeVar("T")


class SleepingDraft(RuledModel):
    """A forward of so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        ends = time.perf_counter() + self._seconds
        logits = super().forward(rows, tables, chunks)
        time.sleep(max(0.0, ends - time.perf_counter()))
        return logits


@dataclass(frozen=True, slots=True)
class Sleeping(FinishedStep[T]):
    ends: float
    target: "SleepingTarget"

    def is_done(self) -> bool:
        return time.perf_counter() >= self.ends

    def collect(self) -> T:
        time.sleep(max(0.0, self.ends - time.perf_counter()))
        self.target.landed_at = time.thread_time()
        return self.result


class SleepingTarget(RowRunner):
    """A forward of so many seconds; keeps the times from the end of each to the next one."""

    is_async = True
    num_uncaptured = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.gaps: list[float] = []
        self.works: list[float] = []
        """Of the gaps, how long the host's thread had a core."""
        self.landed_at = 0.0
        self._ends = float("inf")

    def launch(self, batch: Any, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        started = time.perf_counter()
        if self._ends < started:
            self.gaps.append(started - self._ends)
            self.works.append(time.thread_time() - self.landed_at)
        self._ends = started + self._seconds
        return Sleeping(finish(logits_of(batch, errs=False)), self._ends, self)
