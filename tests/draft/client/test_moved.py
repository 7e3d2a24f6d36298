"""A sequence that moves, or is opened again, begins anew: its former draft does not count."""

from collections.abc import Callable

import pytest

from ssd.draft.protocol.messages import Close, Nodes, Resync, Stats, TreePart
from tests.draft.client.test_pool import Draft, Pool, load


def lose_a_frame(pool: Pool) -> None:
    """Of the sequence's present draft: its next frame is numbered as if one before it had been lost."""
    draft = pool.drafts[pool.home("a")]
    opened = draft.link.opened[-1]
    part = TreePart(opened.seq, opened.epoch, 7, 0, 0, len(opened.tokens) // 4)
    draft.says(Nodes.of([part]))
    pool.client.pool.read()


def num_asked(pool: Pool) -> int:
    """How often its present draft was asked for the whole tree, since it was opened there."""
    link = pool.drafts[pool.home("a")].link
    epoch = link.opened[-1].epoch
    return sum(isinstance(each, Resync) and each.epoch == epoch for each in link.heard)


def lost(pool: Pool) -> None:
    pool.drafts[pool.home("a")].broken = "it ended"
    pool.tend()


def stalled(pool: Pool) -> None:
    home = pool.home("a")
    [other] = set(pool.drafts) - {home}
    pool.tend(0.6)
    pool.drafts[other].says(load(1))
    pool.tend()
    pool.tend()


def left(pool: Pool) -> None:
    pool.named.remove(pool.drafts[pool.home("a")])
    pool.tend()


def declined(pool: Pool) -> None:
    draft = pool.drafts[pool.home("a")]
    opened = draft.link.opened[-1]
    draft.says(Close(opened.seq, opened.epoch, "no room", may_return=True))
    pool.client.pool.read()


def asked_for_its_text(pool: Pool) -> None:
    draft = pool.drafts[pool.home("a")]
    opened = draft.link.opened[-1]
    draft.says(Resync(opened.seq, opened.epoch))
    pool.client.pool.read()


def paused(pool: Pool) -> None:
    pool.client.pause()
    pool.client.resume()


def lost_and_back(pool: Pool) -> None:
    """Its only draft."""
    home = pool.home("a")
    for draft in pool.drafts.values():
        draft.broken = "it ended"
    pool.tend()
    pool.drafts[home].broken = ""
    pool.tend()
    pool.tend()


@pytest.mark.parametrize("how", [lost, stalled, left, declined, asked_for_its_text, paused, lost_and_back])
def test_after_a_move_a_lost_frame_is_asked_for_at_once(how: Callable[[Pool], None]) -> None:
    pool = Pool("one", "two")
    pool.follow("a")
    for _ in range(20):
        pool.client.outcomes([("a", [7])])
    lose_a_frame(pool)
    pool.client.outcomes([("a", [7])])
    assert num_asked(pool) == 1
    how(pool)
    pool.client.pool.read()
    assert pool.home("a") != "nobody"
    assert num_asked(pool) == 0, "it was not opened again: the test says nothing"
    lose_a_frame(pool)
    pool.client.outcomes([("a", [7])])
    assert num_asked(pool) == 1
    # While it is not answered it is asked again, but not with every outcome.
    pool.client.outcomes([("a", [7])])
    assert num_asked(pool) == 1


def slow_draft(pool: Pool, draft: Draft) -> None:
    """Its steps take 2 s."""
    for num_steps in (1, 2):
        draft.says(Stats(num_steps, 1, 2.0 * num_steps, 1, 0.1))
    pool.client.pool.read()


def test_a_draft_that_was_slow_before_it_was_started_again_is_not_waited_for_so_long() -> None:
    pool = Pool("one", "two")
    pool.follow("a")
    home = pool.home("a")
    [other] = set(pool.drafts) - {home}
    slow_draft(pool, pool.drafts[home])
    pool.drafts[other].broken = "it is away"
    pool.drafts[home].broken = "it ended"
    pool.tend()
    pool.drafts[home].broken = ""
    pool.tend()
    pool.drafts[other].broken = ""
    pool.tend()
    pool.tend()
    assert pool.home("a") == home
    pool.client.outcomes([("a", [7])])
    pool.tend(0.6)
    assert pool.home("a") == other


def test_nothing_is_said_of_the_load_of_a_draft_that_is_lost() -> None:
    pool = Pool("one")
    pool.drafts["one"].says(load(5, kv_usage=0.9))
    pool.client.pool.read()
    assert (pool.client.stats.num_sequences, pool.client.stats.kv_usage) == (5, 0.9)
    pool.drafts["one"].broken = "it ended"
    pool.tend()
    assert (pool.client.stats.num_sequences, pool.client.stats.kv_usage) == (0, 0.0)


def test_how_often_one_draft_asked_for_the_text_is_not_held_against_the_next() -> None:
    pool = Pool("one", "two")
    pool.follow("a")
    for _ in range(200):
        pool.client.outcomes([("a", [7])])
        asked_for_its_text(pool)
    assert pool.client.stats.num_resyncs < 20, "one that asks again and again is told more seldom"
    lost(pool)
    link = pool.drafts[pool.home("a")].link
    num_opened = len(link.opened)
    for _ in range(2):
        pool.client.outcomes([("a", [7])])
    asked_for_its_text(pool)
    assert len(link.opened) == num_opened + 1
