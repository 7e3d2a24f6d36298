"""A target and its draft with a network between them: no token changes, none is waited for, hits come back.

The full form of the partition is slow: `pytest tests/network -m slow`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.network.decoding import Pair, Target
from tests.network.hosts import Network
from tests.network.programs import Program
from tests.network.relay import Way

TELLING = ("--says", "0.2")
BATCH = 3
"""Sequences of a target."""
TIMEOUT = 2.0
"""Seconds of silence after which a target gives its draft up."""


@dataclass(slots=True)
class Running:
    pair: Pair
    target: Target
    draft: Program


@pytest.fixture(scope="module")
def _running(_hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    pair = Pair.on(_hosts, tmp_path_factory.mktemp("keys") / "pair")
    draft = pair.draft("draft", *TELLING)
    target = pair.target(pair.address("draft"), "--timeout", str(TIMEOUT))
    running = Running(pair, target, draft)
    yield running
    running.target.end()
    running.draft.end()


@pytest.fixture
def running(network: Network, _running: Running) -> Running:
    """In full swing."""
    _running.target.until_hits(patience=30)
    return _running


WAYS = {
    "at once": Way(),
    "20 ms": Way(delay=0.010),
    "jitter": Way(delay=0.0005, jitter=0.005),
    "a hundredth lost": Way(delay=0.0005, loss=0.01),
    "out of order": Way(delay=0.0005, reorder=0.05, held=0.003),
}
LEAST_HITS = 0.1
"""Of the rounds, however busy the machine is; how many there are on a quiet one is measured elsewhere."""


@pytest.mark.parametrize("name", WAYS)
def test_a_draft_far_away_is_worth_having(running: Running, name: str) -> None:
    running.pair.network.everywhere(WAYS[name])
    running.target.until_hits(patience=10)
    seen = running.target.over(2.0)
    assert seen.hit_rate > LEAST_HITS
    assert seen.accepted > 0.2 * seen.rounds
    assert seen.pace > 0.5
    assert seen.losses == 0


def _partition(running: Running, seconds: float) -> None:
    running.pair.network.everywhere(Way(is_cut=True))
    running.target.over(0.5)
    cut = running.target.over(seconds)
    assert cut.hits == 0
    assert cut.waited < 0.1, "a target waits for a draft that cannot answer"
    assert cut.pace > 0.5
    running.pair.network.mend()
    assert running.target.until_hits(patience=20) < 5


def test_a_partition_costs_hits_and_nothing_else(running: Running) -> None:
    _partition(running, TIMEOUT + 1)


def test_a_partition_too_short_to_be_noticed_is_made_up_for(running: Running) -> None:
    _partition(running, 0.5)


@pytest.mark.slow
def test_a_partition_of_half_a_minute(running: Running) -> None:
    _partition(running, 30)


@pytest.mark.parametrize("deaf", ["target", "draft"])
def test_a_line_that_carries_in_one_direction_only(running: Running, deaf: str) -> None:
    speaker = "draft" if deaf == "target" else "target"
    running.pair.network.one_way(speaker, deaf, Way(is_cut=True))
    running.target.over(0.5)
    cut = running.target.over(TIMEOUT + 1)
    assert cut.hits == 0
    assert cut.waited < 0.2
    assert cut.pace > 0.5
    assert running.target.now("losses") > 0
    running.pair.network.mend()
    assert running.target.until_hits(patience=20) < 5


def test_a_half_open_line_is_found_out(running: Running) -> None:
    """The draft's host goes down without a word and comes back: the target's end still stands."""
    losses = running.target.now("losses")
    running.pair.network.everywhere(Way(is_cut=True))
    running.draft.end()
    running.pair.network.mend()
    running.draft = running.pair.draft("draft", *TELLING)
    running.target.until_hits(patience=20)
    assert running.target.now("losses") == losses + 1


def test_nothing_is_left_of_a_target_that_vanishes(running: Running) -> None:
    """Its host goes down without a word and stays away: the draft's end of the line still stands."""
    draft, network = running.draft, running.pair.network
    gone = running.pair.target(running.pair.address("draft"), host="other")
    try:
        gone.until_hits(patience=30)
        draft.until(lambda: _num_sequences(draft) > BATCH, patience=30)
        network.between("other", "draft", Way(is_cut=True))
    finally:
        gone.end()
    # Some 8 seconds where nothing else computes.
    draft.until(lambda: _num_sequences(draft) <= BATCH, patience=30)
    assert running.target.over(1.0).hits > 0, "those who are left are served"


def _num_sequences(draft: Program) -> int:
    """Of all targets, by the draft's latest word."""
    return sum(draft.lines[-1]["sequences"].values())
