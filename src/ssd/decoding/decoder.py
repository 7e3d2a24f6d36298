"""One step of the target: `launch` starts a forward, `collect` returns the tokens it decided.

Between the two the host can do other work. The proposer supplies the tokens to verify; the target's step is
the same in all modes.
"""

import time
from collections.abc import Sequence

from ssd.decoding.proposer import Proposer
from ssd.decoding.rows import Decided, DecodeRow, StepTimes
from ssd.decoding.tree_slots import TreeSlots
from ssd.decoding.verification import launch
from ssd.runtime.runner import InFlightStep, Runner


class Decoder:
    def __init__(
        self, runner: Runner, proposer: Proposer | None = None, tree_slots: TreeSlots | None = None
    ) -> None:
        """`tree_slots`: KV slots for trees; None: only paths are verified."""
        self._runner = runner
        self._tree_slots = TreeSlots() if tree_slots is None else tree_slots
        self.proposer = Proposer() if proposer is None else proposer
        self.times = StepTimes()
        """Of the latest step."""
        self._in_flight: tuple[Sequence[DecodeRow], InFlightStep[list[Decided]], float, float]
        """The rows and the forward of the step in flight, and when its launch began and ended."""

    @property
    def num_trees(self) -> int:
        """How many sequences of a step may have a tree."""
        return len(self._tree_slots.starts)

    @property
    def is_async(self) -> bool:
        """Whether the host has time between launch and collect."""
        return self._runner.is_async and not self.proposer.takes_turns

    @property
    def num_uncaptured(self) -> int:
        """Steps of the target that no captured graph covers."""
        return self._runner.num_uncaptured

    def launch(self, rows: Sequence[DecodeRow]) -> None:
        """Starts the forward of a step; a forward that blocks the host is done when this returns."""
        started = time.monotonic()
        flight = launch(self._runner, rows, tree_slots=self._tree_slots)
        self._in_flight = rows, flight, started, time.monotonic()

    def collect(self, away: float = 0.0) -> list[Decided]:
        """The tokens that the forward in flight decided. Reads the draft's messages until it is done.

        `away`: seconds since the engine last returned to its caller.
        """
        rows, flight, started, launched = self._in_flight
        was_over = flight.is_done()
        self.proposer.take_in(flight.is_done)
        resumed = time.monotonic()
        decided = flight.collect()
        self._tree_slots.settle(rows, decided)
        # An asynchronous forward ran while the host did other work; a synchronous one ended at the launch. If
        # it ended while the caller was away, the time of its end is unknown, so that time is left out.
        aside = (away if was_over else 0.0) if self.is_async else resumed - launched
        proposed = self.proposer.proposed
        self.times = StepTimes(
            started,
            time.monotonic() - started - aside,
            wait=proposed.waited,
            num_rows=sum(len(row.tokens) for row in rows),
            num_sequences=len(rows),
            num_speculated=sum(row.num_drafted > 0 for row in rows),
            num_ready=proposed.num_ready,
            is_generating=all(row.generated for row in rows),
            aside=aside if self.is_async else 0.0,
            trees=tuple([each.tree for each in decided if each.tree is not None]),
        )
        return decided
