"""Autoregressive decoding: one forward, one token for each sequence.

Every other decoder must produce the tokens this one does.
"""

import time
from collections.abc import Callable, Sequence

from ssd.decoding.decoder import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.decoding.verification import verify
from ssd.draft.line import LineStats
from ssd.runtime.runner import AsyncRunner, Runner


class AutoregressiveDecoder:
    """Also what decoders with a draft are built on."""

    is_drafting = False
    line_stats: LineStats | None = None

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.times = StepTimes()

    def begin(self, context: DraftContext) -> None:
        pass

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        return [Speculation()] * len(contexts)

    @property
    def is_async(self) -> bool:
        return isinstance(self._runner, AsyncRunner)

    def step(self, rows: Sequence[DecodeRow], meanwhile: Callable[[], None] = lambda: None) -> list[Decided]:
        started, aside = time.monotonic(), 0.0

        def timed() -> None:
            nonlocal aside
            began = time.monotonic()
            meanwhile()
            aside = time.monotonic() - began

        decided = verify(self._runner, rows, while_computing=timed)
        # A forward that goes on by itself shares that time; one that holds the host is over by then.
        self.times = StepTimes(
            started,
            time.monotonic() - started - (0.0 if self.is_async else aside),
            num_rows=sum(len(row.tokens) for row in rows),
            num_sequences=len(rows),
            num_speculated=sum(row.num_drafted > 0 for row in rows),
            is_generating=all(row.generated for row in rows),
        )
        return decided

    def forget(self, seq_id: int) -> None:
        pass

    def draft_steps(self) -> list[DraftStep]:
        return []

    def close(self) -> None:
        pass
