"""A draft that is behind counts as late, not as one that guesses wrongly, and gets no further sequences."""

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.client.replica import Replica
from tests.draft.crowd import LOOKAHEAD, STEP, Crowd, Source, Target

SEQUENCES, WIDTH = 64, 12
FEW, MANY = 2, 64
"""Rows a step of the drafts of a pool, for 20 sequences."""
TICKS_PER_ROUND = 5


def shares(target: Target) -> dict[str, float]:
    total = sum(target.known.values())
    return {each.value: target.known[each] / total for each in Knowledge}


def test_of_64_sequences_on_12_rows_a_step_misses_are_late() -> None:
    crowd = Crowd(width=WIDTH, sequences=SEQUENCES)
    target = crowd.add("a", SEQUENCES)
    crowd.run(100)
    target.known.clear()
    crowd.run(100)
    found = shares(target)
    assert found["unknown"] <= 0.05, found
    assert found["late"] + found["hit"] >= 0.95, found
    assert found["late"] > 0.5, "then it would not be behind, and the test would say nothing"


def test_a_draft_that_guesses_wrongly_in_time_is_not_late() -> None:
    crowd = Crowd(sequences=4)
    target = crowd.add("a", 4)
    crowd.run(40)
    target.known.clear()
    for _ in range(10):
        # Two tokens that no draft by the rule expects.
        known = target.client.outcomes([(key, [target.texts[key]] * 2) for key in target.texts])
        target.known.update(known)
        for _ in range(TICKS_PER_ROUND):
            crowd.service.turn(0.0)
            target.client.pool.read()
    assert shares(target)["unknown"] > 0.9, shares(target)
    [replica] = target.client.pool.replicas
    assert replica.is_prompt


class NamedSource(Source):
    def __init__(self, crowd: Crowd, name: str) -> None:
        super().__init__(crowd, b"target", "target")
        self.name = name


class TwoDrafts:
    """One client, a draft with few rows a step and one with many, in a test's own time."""

    def __init__(self) -> None:
        self.drafts = {"few rows": Crowd(width=FEW), "many rows": Crowd(width=MANY)}
        sources = [NamedSource(crowd, name) for name, crowd in self.drafts.items()]
        self.client = DraftClient(FixedSources(*sources), lookahead=LOOKAHEAD, clock=self.clock)
        while len(self.client.pool.ready) < 2:
            self.client.pool.tend()
            self._turn()
        self.target = Target(self.client, 0, 0, prompt=32, max_tokens=100_000)

    def clock(self) -> float:
        return self.drafts["few rows"].now

    def _turn(self) -> None:
        for crowd in self.drafts.values():
            crowd.service.turn(0.0)
            crowd.now += STEP
        self.client.pool.read()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for _ in range(TICKS_PER_ROUND):
                self._turn()
            self.target.round()

    def wait(self, seconds: float) -> None:
        for crowd in self.drafts.values():
            crowd.now += seconds

    def replica(self, name: str) -> Replica:
        return next(each for each in self.client.pool.replicas if each.name == name)

    def counts(self) -> dict[str, int]:
        return {name: crowd.scheduler.num_sessions for name, crowd in self.drafts.items()}


def test_a_draft_that_is_behind_gets_no_further_sequences_and_is_relieved() -> None:
    pool = TwoDrafts()
    pool.target.batch = 20
    pool.rounds(30)
    before = pool.counts()
    assert min(before.values()) >= 6, "both have some: it is not the load that keeps new ones away"
    pool.target.batch += 4
    pool.rounds(2)
    assert pool.counts() == {"few rows": before["few rows"], "many rows": before["many rows"] + 4}
    # Then it hands on one after the other.
    for num_moved in range(1, 5):
        pool.wait(0.26)
        pool.client.pool.tend()
        pool.rounds(1)
        assert pool.counts()["few rows"] == before["few rows"] - num_moved
    # Until it is in time: of one sequence it always is.
    for key in list(pool.target.texts)[1:]:
        pool.client.forget(key)
        del pool.target.texts[key]
    pool.target.batch = 1
    pool.rounds(40)
    assert not pool.replica("few rows").is_behind


def test_lateness_is_forgotten_while_a_draft_has_nothing_to_do() -> None:
    pool = TwoDrafts()
    few = pool.replica("few rows")
    for _ in range(60):
        few.note_rounds(1, 1)
    assert few.is_behind
    pool.wait(4.0)
    assert few.is_behind, "rounds may be slow"
    pool.wait(20.0)
    assert not few.is_behind
    assert few.is_prompt
