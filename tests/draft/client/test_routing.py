"""Which draft a sequence goes to: its favourite, unless that has more than its share."""

import random
from collections import Counter
from dataclasses import dataclass

from ssd.draft.client.router import choose
from tests.draft.client.test_pool import Pool


@dataclass(slots=True)
class Draft:
    name: str
    num_sequences: int = 0


def drafts(count: int) -> list[Draft]:
    return [Draft(f"tcp://10.0.0.{place}:7000") for place in range(count)]


def texts(count: int) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(1000) for _ in range(80)] for _ in range(count)]


def test_texts_that_begin_alike_go_to_the_same_draft() -> None:
    pool = drafts(5)
    for text in texts(50):
        first = choose(pool, text)
        assert first is choose(list(reversed(pool)), [*text[:64], 7, 8, 9])


def test_texts_of_all_kinds_are_spread_evenly() -> None:
    pool = drafts(4)
    chosen = Counter(choose(pool, text).name for text in texts(400))  # type: ignore[union-attr]
    assert len(chosen) == 4
    assert max(chosen.values()) < 140


def test_texts_that_all_begin_alike_fill_no_draft_beyond_its_share() -> None:
    pool, text = drafts(4), texts(1)[0]
    for _ in range(100):
        chosen = choose(pool, text)
        assert chosen is not None
        chosen.num_sequences += 1
    assert max(each.num_sequences for each in pool) <= 1.25 * 25 + 2
    assert max(each.num_sequences for each in pool) > 28, "the favourite has no more than the others"


def test_what_others_have_with_a_draft_counts() -> None:
    pool, text = drafts(2), texts(1)[0]
    favourite = choose(pool, text)
    assert favourite is not None
    favourite.num_sequences = 40
    assert choose(pool, text) is not favourite


def used(pool: Pool) -> set[str]:
    return {each.name for each in pool.client.pool.replicas}


def test_a_target_of_a_large_pool_uses_a_few_drafts() -> None:
    """Other ones than other targets."""
    names = [f"{number}" for number in range(40)]
    pools = [Pool(*names, draw=draw) for draw in (0.1, 0.2, 0.3)]
    chosen = [used(pool) for pool in pools]
    assert [len(each) for each in chosen] == [4, 4, 4]
    assert len(set.union(*chosen)) > 8
    assert len(Pool("1", "2", "3").client.pool.replicas) == 3
