"""Several drafts on one line: who gets a sequence, and who gets it when its draft fails, goes or is late."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, DraftSource, FixedSources
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.client.replica import Replica
from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import (
    AnyMessage,
    Close,
    Hello,
    Nodes,
    OfferOpen,
    Open,
    Outcome,
    Sampling,
    Stats,
    TreePart,
    unpack_ints,
)
from tests.draft.client.test_reconnect import HELLO, Link, Source

TEXTS = {name: [first, 2, 3] for name, first in zip("abcdefgh", range(1, 9), strict=True)}


class Draft(Source):
    """A draft of a name, on a clock that a test moves."""

    def __init__(self, pool: "Pool", name: str, greets: Hello = HELLO) -> None:
        super().__init__(greets)
        self.name, self._pool = name, pool
        self.link_class = Link

    def connect(self) -> Connection | None:
        if self.broken:
            return None
        self.links.append(self.link_class(self._greets))
        return Connection(self.links[-1], HELLO, self._pool.clock, timeout=60.0, hello_timeout=5.0)

    @property
    def link(self) -> Link:
        return self.links[-1]

    def says(self, *messages: AnyMessage) -> None:
        self.link.answers.append(encode(messages))

    def outcomes(self) -> list[Outcome]:
        return [each for each in self.link.heard if isinstance(each, Outcome)]


def load(num_sequences: int, *, kv_usage: float = 0.1, has_room: bool = True) -> Stats:
    seats, tokens = (64, 10_000) if has_room else (0, 0)
    return Stats(0, 0, 0.0, num_sequences, kv_usage, free_sequences=seats, free_tokens=tokens)


class Pool:
    def __init__(self, *names: str, draw: float = 0.0, pool_size: int = 4) -> None:
        self.now = 0.0
        self.drafts = {name: Draft(self, name) for name in names}
        self.named: list[DraftSource] = list(self.drafts.values())
        # As drawn by default, who was lost is tried again at once.
        self.client = DraftClient(self, lookahead=4, pool_size=pool_size, clock=self.clock, draw=lambda: draw)
        self.tend()
        self.tend()

    def clock(self) -> float:
        return self.now

    # Where drafts are to be had.

    def current(self) -> Sequence[DraftSource]:
        return list(self.named)

    def problem(self) -> str:
        return ""

    def close(self) -> None:
        pass

    # What a test does.

    def tend(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.client.pool.tend()
        self.client.pool.read()

    def follow(self, *names: str) -> None:
        for name in names:
            self.client.follow(name, TEXTS[name], 3, Sampling(seed=0), 100)
        self.client.pool.read()

    def replica(self, name: str) -> Replica:
        return next(each for each in self.client.pool.replicas if each.name == name)

    def home(self, key: str) -> str:
        """The draft that has a sequence."""
        replica = self.client._sessions[key].replica
        return replica.name if replica is not None else "nobody"

    def knows(self, key: str) -> bool:
        return self.client.paths([key], 4)[0].tokens == [7, 8]


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool("one", "two")
    yield made
    made.client.check_integrity()
    for replica in made.client.pool.replicas:
        its = [each for each in made.client._sessions.values() if each.replica is replica]
        assert replica.num_own_sequences == len(its)
    made.client.pool.close()
    assert all(each.is_closed for each in made.drafts.values())


def test_sequences_are_shared_out_and_each_draft_hears_of_its_own(pool: Pool) -> None:
    pool.follow(*TEXTS)
    homes = {key: pool.home(key) for key in TEXTS}
    assert set(homes.values()) == {"one", "two"}
    assert all(pool.knows(key) for key in TEXTS)
    found = pool.client.outcomes([(key, [7]) for key in TEXTS])
    assert found == [Knowledge.HIT] * len(TEXTS)
    for name, draft in pool.drafts.items():
        its = [pool.client._sessions[key].seq for key in TEXTS if homes[key] == name]
        [outcome] = draft.outcomes()
        assert outcome.columns().seq.tolist() == its
        assert unpack_ints(outcome.tokens).tolist() == [7] * len(its)


def test_a_draft_that_says_it_is_full_of_others_gets_less(pool: Pool) -> None:
    pool.drafts["one"].says(load(40))
    pool.drafts["two"].says(load(2))
    pool.client.pool.read()
    pool.follow(*TEXTS)
    assert {pool.home(key) for key in TEXTS} == {"two"}


def test_a_draft_that_drains_says_so_by_greeting_and_is_left(pool: Pool) -> None:
    pool.follow(*TEXTS)
    pool.drafts["two"].says(HELLO)
    pool.client.pool.read()
    assert {pool.home(key) for key in TEXTS} == {"one"}
    pool.client.pool.read()
    assert all(pool.knows(key) for key in TEXTS)


def test_whoever_watches_hears_of_the_first_and_the_last_only(pool: Pool) -> None:
    told = list[bool]()
    pool.client.pool.watch(told.append)
    for name in ("one", "two"):
        pool.drafts[name].broken = "it ended"
        pool.tend()
    assert told == [False]
    for name in ("one", "two"):
        pool.drafts[name].broken = ""
        pool.tend()
        pool.tend()
    assert told == [False, True]


def test_a_draft_that_stalls_is_left_though_its_connection_stands(pool: Pool) -> None:
    pool.follow(*TEXTS)
    pool.client.outcomes([(key, [7]) for key in TEXTS])
    pool.tend(0.4)
    pool.drafts["two"].says(load(4))
    pool.tend()
    assert {pool.home(key) for key in TEXTS} == {"one", "two"}
    pool.tend(0.2)
    assert {pool.home(key) for key in TEXTS} == {"two"}
    assert sum(isinstance(each, Close) for each in pool.drafts["one"].link.heard) > 0
    assert pool.client.stats.num_losses == 0
    # It answers again: its words of before mean nothing, but it may be chosen.
    pool.drafts["one"].says(load(0))
    pool.tend()
    assert not pool.replica("one").is_stalled


def test_two_that_both_stall_are_not_played_off_against_each_other(pool: Pool) -> None:
    pool.follow(*TEXTS)
    pool.client.outcomes([(key, [7]) for key in TEXTS])
    homes = [pool.home(key) for key in TEXTS]
    pool.tend(5.0)
    assert [pool.home(key) for key in TEXTS] == homes
    assert pool.client.stats.num_moved == 0


def test_a_draft_that_is_mostly_late_hands_on_one_sequence_at_a_time(pool: Pool) -> None:
    pool.follow(*TEXTS)
    before = [key for key in TEXTS if pool.home(key) == "one"]
    for _ in range(40):
        pool.replica("one").note_rounds(len(before), len(before))
    for num_moved in (1, 1, 2):
        pool.tend(0.2)
        assert [pool.home(key) for key in before].count("two") == num_moved
    for _ in range(40):
        pool.replica("two").note_rounds(1, 1)
    pool.tend(1.0)
    assert [pool.home(key) for key in before].count("two") == 2, "they are as late there"


def test_what_one_has_no_room_for_another_may_have(pool: Pool) -> None:
    pool.follow("a")
    home = pool.home("a")
    other = "two" if home == "one" else "one"
    for each, expected in ((home, other), (other, "nobody")):
        opened = pool.drafts[each].link.opened[-1]
        pool.drafts[each].says(
            Close(opened.seq, opened.epoch, "no room", may_return=True), load(1, has_room=False)
        )
        pool.client.pool.read()
        assert pool.home("a") == expected
    for _ in range(3):
        pool.drafts[home].says(load(1, has_room=False))
        pool.tend(1.0)
        assert pool.home("a") == "nobody"
    pool.drafts[other].says(load(0))
    pool.client.pool.read()
    assert pool.home("a") == other


def asked_at(pool: Pool, *, until: float, is_full: bool = True) -> list[float]:
    """When a sequence that was declined is opened again, while the draft says every second how full it is."""
    draft, found = pool.drafts["one"], list[float]()
    while pool.now < until:
        num_opened = len(draft.link.opened)
        draft.says(Stats(0, 0, 0.0, 4, 0.9))
        pool.tend(1.0)
        if len(draft.link.opened) > num_opened:
            found.append(pool.now)
            if is_full:
                decline(pool)
    return found


def decline(pool: Pool) -> None:
    opened = pool.drafts["one"].link.opened[-1]
    pool.drafts["one"].says(
        Close(opened.seq, opened.epoch, "no room", may_return=True), Stats(0, 0, 0.0, 4, 0.9)
    )
    pool.client.pool.read()


def test_who_was_declined_asks_again_after_5_s_and_then_more_seldom() -> None:
    """By a draft that does not announce its room."""
    pool = Pool("one")
    pool.follow("a")
    decline(pool)
    times = asked_at(pool, until=400.0)
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    # Stats come every second, so one asks up to a second later.
    assert gaps[:6] == pytest.approx([5, 10, 20, 40, 60, 60], abs=1.01)
    # There is room at last: it is taken in, and does not ask any more.
    pool.tend(60.0)
    assert len(asked_at(pool, until=pool.now + 70, is_full=False)) <= 1
    assert pool.home("a") == "one"


def test_of_those_that_were_declined_the_shortest_asks_first() -> None:
    pool = Pool("one")
    for key, length in (("long", 30), ("short", 5), ("middling", 12)):
        pool.client.follow(key, [7] * length, length, Sampling(seed=0), 100)
        decline(pool)
    pool.drafts["one"].says(Stats(0, 0, 0.0, 0, 0.1, free_sequences=1, free_tokens=10_000))
    pool.tend(1.0)
    assert [pool.home(key) for key in ("long", "short", "middling")] == ["nobody", "one", "nobody"]


def test_a_text_beyond_the_context_that_a_draft_announces_is_not_sent_to_it() -> None:
    pool = Pool("one", "two")
    context = HELLO.max_model_len
    for key, length in (("long", context - 1), ("fits", context - 2)):
        pool.client.follow(key, [7] * length, length, Sampling(seed=0), 2 * context)
    opened = [each for draft in pool.drafts.values() for each in draft.link.opened]
    assert [len(each.tokens) // 4 for each in opened] == [context - 2]
    assert pool.home("long") == "nobody"


def named_drafts(*names: str) -> Pool:
    """Each draft calls itself by the letters of its address."""
    made = Pool(*names)
    for name, draft in made.drafts.items():
        draft._greets = msgspec.structs.replace(HELLO, name=name.rstrip("0123456789"))
        draft.broken = "it is replaced"
    made.tend()
    for draft in made.drafts.values():
        draft.broken = ""
    made.tend()
    made.tend()
    return made


def test_a_request_gets_a_draft_of_the_name_that_it_asks_for() -> None:
    pool = named_drafts("chat1", "chat2", "code")
    for key, text in TEXTS.items():
        wanted = "code" if key < "e" else "chat"
        pool.client.follow(key, text, 3, Sampling(seed=0), 100, draft_name=wanted)
        pool.client.follow(f"{key} elsewhere", text, 3, Sampling(seed=0), 100, draft_name="poems")
    assert {pool.home(key) for key in TEXTS if key < "e"} == {"code"}
    assert {pool.home(key) for key in TEXTS if key >= "e"} == {"chat1", "chat2"}
    assert "nobody" not in {pool.home(f"{key} elsewhere") for key in TEXTS}, "there are no poems"
    pool.drafts["code"].broken = "it ended"
    pool.tend()
    assert "nobody" not in {pool.home(key) for key in TEXTS}, "any draft is better than none"


def test_a_draft_of_fewer_tokens_gets_only_what_it_knows() -> None:
    pool = Pool("one", "two")
    pool.drafts["two"]._greets = msgspec.structs.replace(HELLO, vocab_size=50)
    pool.drafts["two"].broken = "it is replaced"
    pool.tend()
    pool.drafts["two"].broken = ""
    pool.tend()
    pool.tend()
    for place in range(8):
        pool.client.follow(place, [place + 1, 60], 1, Sampling(seed=0), 100)
        assert pool.home(place) == "one"  # type: ignore[arg-type]


def test_a_replacement_that_refuses_changes_nothing(pool: Pool) -> None:
    pool.follow(*TEXTS)
    homes = [pool.home(key) for key in TEXTS]
    third = pool.drafts["three"] = Draft(pool, "three", Hello(1, "same", 100, "old", "x", 0, "too old"))
    pool.client.pool.replace(FixedSources(third))
    pool.tend()
    pool.tend()
    assert [pool.home(key) for key in TEXTS] == homes
    assert third.is_closed
    assert len(third.links) == 1, "it is asked again and again"
    assert pool.client.pool._trial is None


def test_a_draft_closes_no_sequence_of_another(pool: Pool) -> None:
    """A faulty draft may name any sequence and any epoch; the one that has it would keep it for ever."""
    pool.follow(*TEXTS)
    homes = {name: pool.home(name) for name in TEXTS}
    theirs = pool.drafts["two"].link.heard
    opened = [each for each in theirs if isinstance(each, Open)]
    assert opened
    for each in opened:
        pool.drafts["one"].says(Close(each.seq, each.epoch, "not mine", may_return=False))
        pool.drafts["one"].says(OfferOpen(each.seq, each.epoch))
    num_heard = len(theirs)
    pool.tend()
    assert {name: pool.home(name) for name in TEXTS} == homes
    assert len(theirs) == num_heard


def test_a_draft_sends_no_nodes_for_a_sequence_of_another(pool: Pool) -> None:
    pool.follow(*TEXTS)
    opened = [each for each in pool.drafts["two"].link.heard if isinstance(each, Open)]
    assert opened
    whole = ([3, 4], [0, 3], [9, 10], [-0.1, -0.1])
    lies = [TreePart(each.seq, each.epoch, 1, 0, 0, 3, *whole, full=True) for each in opened]
    pool.drafts["one"].says(Nodes.of(lies))
    pool.tend()
    assert all(pool.knows(key) for key in TEXTS)


def test_a_pause_concerns_all(pool: Pool) -> None:
    pool.follow(*TEXTS)
    pool.client.pause()
    assert {pool.home(key) for key in TEXTS} == {"nobody"}
    pool.drafts["one"].broken = "it ended"
    pool.tend()
    assert {pool.home(key) for key in TEXTS} == {"nobody"}
    pool.client.resume()
    assert {pool.home(key) for key in TEXTS} == {"two"}
