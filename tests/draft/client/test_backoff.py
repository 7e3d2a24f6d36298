"""A draft that was lost is tried again soon, then ever more seldom, and not by all targets at once."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.replica import FIRST_DELAY, LONGEST_DELAY
from ssd.draft.protocol.messages import Hello
from tests.draft.client.test_pool import Draft, Pool
from tests.draft.client.test_reconnect import HELLO


def tries(draw: Callable[[], float], *, seconds: float, lives: float = 0.0) -> list[float]:
    """When a draft is tried that greets, works for so many seconds and is lost then."""
    pool = Pool()
    draft = Draft(pool, "one", HELLO)
    client = DraftClient(FixedSources(draft), lookahead=4, clock=pool.clock, draw=draw)
    found = list[float]()
    while pool.now < seconds:
        num_tries = len(draft.links)
        client.pool.tend()
        client.pool.read()
        if len(draft.links) > num_tries:
            found.append(pool.now)
        elif client.is_ready and pool.now - found[-1] >= lives:
            draft.link.has_hung_up = True
        pool.now += 0.01
    client.pool.close()
    return found


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_each_try_waits_twice_as_long_up_to_a_bound() -> None:
    found = gaps(tries(lambda: 1.0, seconds=60.0))
    expected = [min(FIRST_DELAY * 2**number, LONGEST_DELAY) for number in range(len(found))]
    assert found == pytest.approx(expected, abs=0.1)
    assert expected.count(LONGEST_DELAY) >= 3


def test_targets_of_one_draft_do_not_come_at_once() -> None:
    first = [gaps(tries(lambda chance=chance: chance, seconds=8.0))[3] for chance in (0.2, 0.5, 0.9)]  # type: ignore[misc]
    assert first == pytest.approx([0.4, 1.0, 1.8], abs=0.1)


def test_a_source_that_fails_is_asked_ever_more_seldom() -> None:
    pool = Pool()

    class Failing(Draft):
        num_tries = 0

        def connect(self) -> None:
            self.num_tries += 1
            raise OSError("no socket")

    draft = Failing(pool, "one", Hello(1, "same", 100, "someone", "one"))
    client = DraftClient(FixedSources(draft), lookahead=4, clock=pool.clock, draw=lambda: 1.0)
    for _ in range(1000):
        client.pool.tend()
        pool.now += 0.05
    # 0.25 + 0.5 + … + 8 s, then every 10.
    assert draft.num_tries == 10
