"""A draft that is behind counts as late, not as one that guesses wrongly, and gets no further sequences."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ruled import RuledModel, grower_of, hello, shape_of
from ssd.draft.client import DraftClient
from ssd.draft.link import Keys, ZmqDraftLink, make_keys
from ssd.draft.messages import Sampling
from ssd.draft.mirrors import Knowledge
from ssd.draft.service import DraftService
from ssd.draft.sources import FixedSources, sources_at
from ssd.draft.strand import Strand
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
            target.client.line.read()
    assert shares(target)["unknown"] > 0.9, shares(target)
    [strand] = target.client.line.strands
    assert strand.is_prompt


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
        while len(self.client.line.ready) < 2:
            self.client.line.tend()
            self._turn()
        self.target = Target(self.client, 0, 0, prompt=32, max_tokens=100_000)

    def clock(self) -> float:
        return self.drafts["few rows"].now

    def _turn(self) -> None:
        for crowd in self.drafts.values():
            crowd.service.turn(0.0)
            crowd.now += STEP
        self.client.line.read()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for _ in range(TICKS_PER_ROUND):
                self._turn()
            self.target.round()

    def wait(self, seconds: float) -> None:
        for crowd in self.drafts.values():
            crowd.now += seconds

    def strand(self, name: str) -> Strand:
        return next(each for each in self.client.line.strands if each.name == name)

    def counts(self) -> dict[str, int]:
        return {name: crowd.grower.num_sessions for name, crowd in self.drafts.items()}


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
        pool.client.line.tend()
        pool.rounds(1)
        assert pool.counts()["few rows"] == before["few rows"] - num_moved
    # Until it is in time: of one sequence it always is.
    for key in list(pool.target.texts)[1:]:
        pool.client.forget(key)
        del pool.target.texts[key]
    pool.target.batch = 1
    pool.rounds(40)
    assert not pool.strand("few rows").is_behind


def test_lateness_is_forgotten_while_a_draft_has_nothing_to_do() -> None:
    pool = TwoDrafts()
    few = pool.strand("few rows")
    for _ in range(60):
        few.note_rounds(1, 1)
    assert few.is_behind
    pool.wait(4.0)
    assert few.is_behind, "rounds may be slow"
    pool.wait(20.0)
    assert not few.is_behind
    assert few.is_prompt


class RealDrafts:
    """The same with real sockets; the drafts work in the test's own thread."""

    def __init__(self, folder: Path) -> None:
        make_keys(folder)
        self.links, self.services, addresses = list[ZmqDraftLink](), list[DraftService](), list[str]()
        for width in (FEW, MANY):
            link = ZmqDraftLink("tcp://127.0.0.1:0", Keys(folder / "draft"))
            addresses.append(bytes(link._socket.last_endpoint).decode())  # type: ignore[arg-type]
            shape = shape_of(SEQUENCES, 2 * LOOKAHEAD, width=width, slots=128)
            grower = grower_of(RuledModel(), prefill_chunk=128, shape=shape)
            self.links.append(link)
            self.services.append(DraftService(grower, link, hello("draft")))
        sources = sources_at(",".join(addresses), hello("target"), timeout=60.0, keys=Keys(folder / "engine"))
        self.client = DraftClient(sources, lookahead=LOOKAHEAD)
        while len(self.client.line.ready) < 2:
            self.client.line.tend()
            self.turn()
        self.target = Target(self.client, 0, 0, prompt=32, max_tokens=100_000)

    def turn(self) -> None:
        for service in self.services:
            service.turn(0.001)
        self.client.line.read()

    def rounds(self, count: int) -> None:
        """The draft of few rows has so many steps in each; the other as many as it needs on this machine."""
        for _ in range(count):
            for _ in range(TICKS_PER_ROUND):
                self.services[0].turn(0.0)
            deadline = time.monotonic() + 20
            while not self._is_ahead() and time.monotonic() < deadline:
                self.services[1].turn(0.001)
                self.client.line.read(0.001)
            self.target.round()

    def _is_ahead(self) -> bool:
        """The draft of many rows knows more of each of its sequences than a round can take."""
        wide, followed = self.client.line.strands[1], self.client._followed
        keys = [key for key in self.target.texts if followed[key].strand is wide]
        depth = LOOKAHEAD + 2
        return all(len(path.tokens) == depth for path in self.client.paths(keys, depth))

    def counts(self) -> list[int]:
        return [service._grower.num_sessions for service in self.services]


@pytest.fixture
def real_drafts(tmp_path: Path) -> Iterator[RealDrafts]:
    made = RealDrafts(tmp_path)
    yield made
    made.client.line.close()
    for link in made.links:
        link.close()


def test_with_real_sockets_too(real_drafts: RealDrafts) -> None:
    pool = real_drafts
    pool.target.batch = 20
    pool.rounds(30)
    pool.target.known.clear()
    pool.rounds(10)
    found = shares(pool.target)
    assert found["unknown"] <= 0.05, found
    assert found["late"] > 0.2, found
    before = pool.counts()
    for number in range(4):
        pool.client.follow(f"new {number}", [7 + number] * 8, 8, Sampling(seed=1), 100)
    for _ in range(20):
        pool.turn()
    assert pool.counts() == [before[0], before[1] + 4]
