"""One step of the target: a forward is started, and later its decided tokens are collected.

Between the two the host does what can wait. Who guesses the tokens that are verified is the proposer's
affair: with none, with one that takes turns with the target and with one that works ahead, the target's
step is the same.
"""

import time
from collections.abc import Sequence

from ssd.decoding.arenas import Arenas
from ssd.decoding.proposer import Proposer
from ssd.decoding.rows import Decided, DecodeRow, StepTimes
from ssd.decoding.verification import launch
from ssd.runtime.runner import Flight, Runner


class Decoder:
    def __init__(
        self, runner: Runner, proposer: Proposer | None = None, arenas: Arenas | None = None
    ) -> None:
        """`arenas`: where trees have their keys; None: only paths are verified."""
        self._runner = runner
        self._arenas = Arenas() if arenas is None else arenas
        self.proposer = Proposer() if proposer is None else proposer
        self.times = StepTimes()
        """Of the latest step."""
        self._under_way: tuple[Sequence[DecodeRow], Flight[list[Decided]], float, float]
        """A step's rows, its forward, and when the launch of it began and ended."""

    @property
    def num_trees(self) -> int:
        """Sequences of a step that may have a tree verified."""
        return len(self._arenas.starts)

    @property
    def is_async(self) -> bool:
        """Whether the host has time between launch and collect."""
        return self._runner.is_async and not self.proposer.takes_turns

    @property
    def num_uncaptured(self) -> int:
        """Steps of the target that no captured one held."""
        return self._runner.num_uncaptured

    def launch(self, rows: Sequence[DecodeRow]) -> None:
        """Starts the forward of a step; one that holds the host is over when this returns."""
        started = time.monotonic()
        flight = launch(self._runner, rows, arenas=self._arenas)
        self._under_way = rows, flight, started, time.monotonic()

    def collect(self, away: float = 0.0) -> list[Decided]:
        """What the forward under way decided, after everything that the draft said meanwhile.

        `away`: how long nobody cared for it, since the engine's caller was busy or idle.
        """
        rows, flight, started, launched = self._under_way
        was_over = flight.is_done()
        self.proposer.take_in(flight.is_done)
        resumed = time.monotonic()
        decided = flight.collect()
        self._arenas.settle(rows, decided)
        # A forward that goes on by itself shares the host's time since; one that held the host was over.
        # Where it ended while the caller was away, it is not known when.
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
