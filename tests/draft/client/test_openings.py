"""How texts reach drafts: asked about first where they are long, and a bounded part of them at a time."""

from itertools import pairwise

import msgspec

from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import AskOpen, Close, Hello, Open, Outcome, Sampling, Stats
from tests.draft.client.test_pool import Draft, Pool
from tests.draft.client.test_reconnect import HELLO, Link

LONG = msgspec.structs.replace(HELLO, max_model_len=200_000)
NAMES = [f"draft {number}" for number in range(16)]


class FullLink(Link):
    """Has no room, for whatever is asked or sent."""

    def send(self, frame: bytes) -> None:
        super().send(frame)
        for message in self.heard[-1:]:
            if isinstance(message, AskOpen | Open):
                self.answers = [encode([Close(message.seq, message.epoch, "no room", may_return=True)])]


def pool_of(names: list[str], greets: Hello = LONG, *, full: bool = False) -> Pool:
    made = Pool(*names, pool_size=len(names))
    for draft in made.drafts.values():
        draft._greets, draft.broken = greets, "it is replaced"
        draft.link_class = FullLink if full else Link
    made.tend()
    for draft in made.drafts.values():
        draft.broken = ""
    made.tend()
    made.tend()
    return made


def announce(pool: Pool, draft: Draft, **room: int | bool) -> None:
    draft.says(Stats(0, 0, 0.0, 0, 0.1, **room))  # type: ignore[arg-type]
    pool.client.pool.read()


def follow(pool: Pool, key: str, length: int) -> None:
    pool.client.follow(key, [7] * length, length, Sampling(seed=0), 200_000)
    for _ in range(2 * len(pool.drafts)):
        pool.client.pool.read()


def num_bytes(pool: Pool) -> int:
    return sum(draft.link.num_bytes for draft in pool.drafts.values())


def test_drafts_that_announce_no_seats_are_not_even_asked() -> None:
    pool = pool_of(NAMES, full=True)
    for draft in pool.drafts.values():
        announce(pool, draft, free_sequences=0, free_tokens=50_000)
    before = num_bytes(pool)
    follow(pool, "long", 100_000)
    follow(pool, "short", 100)
    assert num_bytes(pool) == before
    # One has room at last.
    *_, last = pool.drafts.values()
    last.link.__class__ = Link
    announce(pool, last, free_sequences=1, free_tokens=50_000)
    pool.client.pool.read()
    assert (pool.home("short"), pool.home("long")) == (last.name, "nobody")
    announce(pool, last, free_sequences=0, free_tokens=50_000)
    announce(pool, last, free_sequences=1, free_tokens=200_000)
    pool.client.pool.read()
    assert pool.home("long") == last.name


def test_a_draft_that_announces_room_for_the_text_is_asked_first() -> None:
    pool = pool_of(NAMES)
    for number, draft in enumerate(pool.drafts.values()):
        announce(pool, draft, free_sequences=4, free_tokens=200_000 if number == 11 else 1_000)
    follow(pool, "a", 100_000)
    assert pool.home("a") == NAMES[11]
    asked = [each for draft in pool.drafts.values() for each in draft.link.heard if isinstance(each, AskOpen)]
    assert [(each.num_tokens, each.prefix) for each in asked] == [(100_000, b"")], "the room says it all"


def test_a_burst_asks_a_draft_for_no_more_than_it_announced() -> None:
    pool = pool_of(["one"], full=False)
    draft = pool.drafts["one"]
    announce(pool, draft, free_sequences=3)
    for number in range(10):
        follow(pool, f"{number}", 10)
    assert len(draft.link.opened) == 3


def test_tokens_that_are_decided_between_question_and_answer_are_in_the_text() -> None:
    pool = pool_of(["one"])
    pool.client.follow("a", [7] * 5_000, 5_000, Sampling(seed=0), 200_000)
    link = pool.drafts["one"].link
    for token in (8, 9):
        pool.client.outcomes([("a", [token])])
    assert not link.opened
    pool.client.pool.read()
    [opened] = link.opened
    assert opened.tokens[-12:] == b"".join(each.to_bytes(4, "little") for each in (7, 8, 9))
    assert not [each for each in link.heard if isinstance(each, Outcome)]
    pool.client.pool.read()
    pool.client.outcomes([("a", [7])])
    assert [each.columns().n.tolist() for each in link.heard if isinstance(each, Outcome)] == [[1]]


def test_what_a_lost_draft_had_is_opened_again_in_parts() -> None:
    """256 texts of 32,000 tokens held the host for 260 ms in one call."""
    length = 32_000
    pool = pool_of(["one", "two"])
    pool.drafts["two"].broken = "it is not there yet"
    pool.tend()
    keys = [f"{number}" for number in range(256)]
    for number, key in enumerate(keys):
        pool.client.follow(key, [number % 90, 7] * (length // 2), length, Sampling(seed=0), 200_000)
    for _ in range(300):
        pool.client.pool.read()
    assert {pool.home(key) for key in keys} == {"one"}
    pool.drafts["two"].broken = ""
    pool.tend()
    pool.tend()
    link, sent = pool.drafts["two"].link, [0]
    pool.drafts["one"].broken = "it ended"
    pool.client.pool.tend()
    while {pool.home(key) for key in keys} != {"two"} or len(link.opened) < 256:
        pool.client.pool.read()
        sent.append(sum(len(each.tokens) for each in link.opened))
        assert len(sent) < 1000
    assert max(later - earlier for earlier, later in pairwise(sent)) <= 4 * (131_072 + 64_000)
    pool.client.check_integrity()


def test_the_shortest_texts_of_a_lost_draft_have_another_first() -> None:
    pool = pool_of(["one", "two"])
    pool.drafts["two"].broken = "it is not there yet"
    pool.tend()
    for number in range(40):
        follow(pool, f"{number}", 30_000 - 700 * number)
    pool.drafts["two"].broken = ""
    pool.tend()
    pool.tend()
    pool.drafts["one"].broken = "it ended"
    for _ in range(100):
        pool.tend()
    lengths = [len(each.tokens) for each in pool.drafts["two"].link.opened]
    assert len(lengths) == 40
    assert lengths == sorted(lengths)
