"""A draft that drains hands its sequences on one by one, so that few of them miss at a time."""

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.mirrors import Knowledge
from tests.draft.crowd import LOOKAHEAD, STEP, Crowd, Target
from tests.draft.test_behind import NamedSource

SEQUENCES, TICKS_PER_ROUND, TICKS_PER_TEND = 12, 5, 25


class Game:
    """One target and two drafts, in a test's own time; prompts take some steps."""

    def __init__(self) -> None:
        self.drafts = {name: Crowd(width=64) for name in ("first", "second")}
        sources = [NamedSource(crowd, name) for name, crowd in self.drafts.items()]
        self.client = DraftClient(FixedSources(*sources), lookahead=LOOKAHEAD, clock=self.clock)
        self.ticks = 0
        while len(self.client.pool.ready) < 2:
            self.client.pool.tend()
            self._tick()
        self.target = Target(self.client, 0, SEQUENCES, prompt=600, max_tokens=100_000)

    def clock(self) -> float:
        return self.drafts["first"].now

    def _tick(self) -> None:
        self.ticks += 1
        for crowd in self.drafts.values():
            crowd.service.turn(0.0)
            crowd.now += STEP
        self.client.pool.read()
        if self.ticks % TICKS_PER_TEND == 0:
            self.client.pool.tend()

    def hits(self, rounds: int) -> list[float]:
        """Of each round, the share of sequences that hit."""
        found = list[float]()
        for _ in range(rounds):
            for _ in range(TICKS_PER_ROUND):
                self._tick()
            self.target.known.clear()
            self.target.round()
            found.append(self.target.known[Knowledge.HIT] / SEQUENCES)
        return found

    def end(self, name: str) -> None:
        for replica in self.client.pool.replicas:
            if replica.name == name and replica.connection is not None:
                replica.connection.lose("it has ended")


@pytest.mark.parametrize("drains", [False, True])
def test_hits_do_not_collapse_when_a_draft_that_drained_ends(drains: bool) -> None:
    game = Game()
    game.hits(60)
    [usual] = [sum(game.hits(20)) / 20]
    assert usual > 0.8
    ends = max(game.drafts, key=lambda name: game.drafts[name].scheduler.num_sessions)
    assert game.drafts[ends].scheduler.num_sessions >= 5
    game.drafts[ends].service.drains = drains
    worst = min(game.hits(100))
    game.end(ends)
    worst = min(worst, *game.hits(20))
    if drains:
        assert worst >= 0.6
    else:
        assert worst < 0.6, "then draining gains nothing here"
