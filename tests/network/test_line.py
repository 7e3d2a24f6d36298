"""A target and its draft on two hosts: no token changes, the target does not wait, hits come back."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.network.decoding import Pair, Target
from tests.network.hosts import Network, NetworkError
from tests.network.programs import Program
from tests.network.relay import Way

PATIENCE = 60.0
"""Seconds: guards against a hang only, however busy the machine is."""
TIMEOUT = 2.0
"""Seconds of silence after which a target gives its draft up."""


@dataclass(slots=True)
class Running:
    pair: Pair
    target: Target
    draft: Program


@pytest.fixture(scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    try:
        network = Network("target", "draft")
    except NetworkError as error:
        pytest.skip(str(error))
    with network:
        pair = Pair.on(network, tmp_path_factory.mktemp("keys") / "pair")
        draft = pair.draft()
        target = pair.target(pair.address("draft"), "--timeout", str(TIMEOUT))
        running = Running(pair, target, draft)
        yield running
        running.target.end()
        running.draft.end()


@pytest.fixture
def running(_running: Running) -> Iterator[Running]:
    """There are hits, and all lines are whole."""
    _running.pair.network.mend()
    _running.target.until_hits(PATIENCE)
    yield _running
    _running.pair.network.mend()


@pytest.mark.parametrize("way", [Way(delay=0.010), Way(delay=0.0005, loss=0.01)], ids=["20 ms", "losses"])
def test_a_distant_draft_is_hit(running: Running, way: Way) -> None:
    running.pair.network.everywhere(way)
    running.target.until_hits(PATIENCE)
    losses = running.target.now("losses")
    seen = running.target.over(1.0)
    assert seen.accepted > 0
    assert running.target.now("losses") == losses


@pytest.mark.parametrize("seconds", [0.5, TIMEOUT + 1], ids=["not noticed", "noticed"])
@pytest.mark.parametrize("deaf", ["both", "target", "draft"])
def test_a_cut_line_costs_hits_and_nothing_else(running: Running, deaf: str, seconds: float) -> None:
    network, target = running.pair.network, running.target
    losses = target.now("losses")
    for speaker, listener in (("draft", "target"), ("target", "draft")):
        if deaf in ("both", listener):
            network.one_way(speaker, listener, Way(is_cut=True))
    target.over(0.5)
    cut = target.over(seconds)
    assert cut.hits == 0
    assert cut.waited < 0.2, "the target waits for a draft that cannot answer"
    if seconds > TIMEOUT:
        assert target.now("losses") > losses
    network.mend()
    target.until_hits(PATIENCE)


def test_a_half_open_line_is_found_out(running: Running) -> None:
    """The draft's host goes down without a word and comes back: the target's end still stands."""
    losses = running.target.now("losses")
    running.pair.network.everywhere(Way(is_cut=True))
    running.draft.end()
    running.pair.network.mend()
    running.draft = running.pair.draft()
    running.target.until_hits(PATIENCE)
    assert running.target.now("losses") == losses + 1
