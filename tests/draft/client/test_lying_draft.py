"""A draft may say what it likes: that costs no bytes without end and no metrics."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.mirrors import Mirrors
from ssd.draft.client.proposals import TreeLimits, likely_nodes
from ssd.draft.protocol.codec import FrameError, decode, encode
from ssd.draft.protocol.messages import AnyMessage, Close, Nodes, Resync, Sampling, Stats, TreePart
from tests.draft.client.test_reconnect import Link, Source

NAN, INF = float("nan"), float("inf")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lying(clock: Clock) -> Iterator[tuple[DraftClient, Link]]:
    """A client with one sequence, and the draft's end of its line."""
    source = Source()
    client = DraftClient(FixedSources(source), lookahead=4, clock=clock)
    while not client.is_ready:
        client.pool.tend()
        client.pool.read()
    client.follow("a", [5] * 50, 50, Sampling(seed=1), 400)
    client.pool.read()
    yield client, source.links[0]
    client.pool.close()


def say(client: DraftClient, link: Link, *messages: AnyMessage) -> None:
    link.answers.append(encode(messages))
    client.pool.read()


def stats(**changes: Any) -> Stats:
    usual: dict[str, Any] = {
        "num_steps": 5,
        "num_rows": 9,
        "seconds": 1.0,
        "num_sequences": 1,
        "kv_usage": 0.5,
    }
    return Stats(**{**usual, **changes})


def test_asking_again_and_again_for_a_text_brings_few(lying: tuple[DraftClient, Link]) -> None:
    """Epochs are counted up, so they can be foreseen."""
    client, link = lying
    say(client, link, *(Resync(0, epoch) for epoch in range(1, 1001)))
    assert len(link.opened) == 1
    for _ in range(200):
        client.outcomes([("a", [7])])
        last = link.opened[-1].epoch
        say(client, link, *(Resync(0, epoch) for epoch in range(last, last + 50)))
    assert 2 <= len(link.opened) <= 10


def test_saying_again_and_again_that_there_is_room_brings_few(lying: tuple[DraftClient, Link]) -> None:
    client, link = lying
    said: list[AnyMessage] = []
    for epoch in range(1, 300):
        said += [Close(0, epoch, may_return=True), stats(num_sequences=9), stats(num_sequences=1)]
    say(client, link, *said)
    assert len(link.opened) <= 3


@pytest.mark.parametrize("num_sequences", [1, 50])
def test_saying_for_an_hour_that_there_is_room_brings_few(
    lying: tuple[DraftClient, Link], clock: Clock, num_sequences: int
) -> None:
    """Whatever is opened is declined, and then there are fewer sequences than when it was."""
    client, link = lying
    for number in range(1, num_sequences):
        client.follow(f"more {number}", [5] * 50, 50, Sampling(seed=1), 400)
    num_declined, ends = 0, 3600.0
    while clock.now < ends and num_declined < 500:
        new, num_declined = link.opened[num_declined:], len(link.opened)
        link.answers += [encode([Close(each.seq, each.epoch, may_return=True)]) for each in new]
        say(client, link, stats(num_sequences=9), stats(num_sequences=1))
        # In small steps as long as anything comes of it.
        clock.now += 0.006 if len(link.opened) > num_declined else 0.25
    num_returns = len(link.opened) - num_sequences
    assert 50 <= num_returns <= 20 + ends / 60


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": -(2**63)},
        {"num_steps": 2**64 - 1},
        {"num_rows": -1},
        {"num_sequences": 2**60},
        {"num_own_rows": -1},
        {"seconds": NAN},
        {"seconds": INF},
        {"seconds": -1.0},
        {"kv_usage": NAN},
        {"kv_usage": 1.5},
        {"kv_usage": -0.1},
        {"step_spans": [(NAN, 1.0, 1)]},
        {"step_spans": [(0.0, INF, 1)]},
        {"step_spans": [(2.0, 1.0, 1)]},
        {"step_spans": [(0.0, 1.0, -1)]},
    ],
    ids=str,
)
def test_figures_that_nothing_can_have_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        decode(encode([stats(**changes)]), vocab_size=10)


def test_figures_stay_within_what_can_be_told(lying: tuple[DraftClient, Link]) -> None:
    client, link = lying
    for _ in range(1100):
        say(client, link, stats(num_steps=0, num_own_rows=0), stats(num_steps=2**53, num_own_rows=2**53))
    found = client.stats
    assert found.num_steps <= 2**53
    assert found.num_own_rows <= 2**53
    assert all(map(math.isfinite, (found.draft_seconds, found.step_seconds, found.kv_usage)))


def test_names_of_tenants_are_few(lying: tuple[DraftClient, Link]) -> None:
    client, link = lying
    seen = set()
    for number in range(5000):
        say(client, link, stats(tenant=f"tenant {number}"))
        seen.add(client.stats.tenant)
    assert len(seen) <= 17


def test_siblings_are_together_no_likelier_than_certain() -> None:
    mirrors = Mirrors(1)
    mirrors.open(0, 1, 10)
    part = TreePart(0, 1, 0, 0, 0, 10, [1, 2, 3, 4], [0] * 4, [5, 6, 7, 8], [-0.1] * 4)
    mirrors.take(Nodes.of([part]))
    _tokens, chances, _parents = likely_nodes(mirrors, 0, 0, None, TreeLimits(16, 4, 0.0))
    assert len(chances) == 4
    assert sum(chances) == pytest.approx(1.0)
