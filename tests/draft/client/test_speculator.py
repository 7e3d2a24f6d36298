"""Who waits for the draft, and when a draft rests."""

from typing import Any

import pytest

from ssd.draft.client.mirrors import Knowledge
from ssd.draft.client.proposals import DraftedTokens
from ssd.draft.client.replica import PoolStats
from ssd.draft.client.speculator import Round, Speculator, Verified
from ssd.draft.protocol.messages import Sampling


class Client:
    """A draft that knows what it is told to know, from the first wait on or before."""

    def __init__(self, known: dict[str, DraftedTokens], later: dict[str, DraftedTokens]) -> None:
        self.known, self.later = known, later
        self.arrived: dict[str, DraftedTokens] = {}
        """What the draft has said and nobody has read."""
        self.stats = PoolStats(step_seconds=0.01)
        self.pool = self
        self.is_paused = False
        self.knowledge = Knowledge.HIT
        self.texts: dict[str, list[int]] = {}
        self.forced: dict[str, tuple[int, ...]] = {}
        self.num_waits = 0
        self.now = 0.0

    def read(self) -> None:
        self.known, self.arrived = {**self.known, **self.arrived}, {}

    def follow(self, key: str, tokens: Any, *_: object, draft_name: str) -> None:
        self.texts[key] = list(tokens)

    def forget(self, key: str) -> None:
        self.texts.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self.texts

    def unknown_among(self, keys: list[str]) -> list[str]:
        return [key for key in keys if key not in self.texts]

    def text_of(self, key: str) -> tuple[Any, int]:
        from array import array

        return array("i", self.texts.get(key, [])), 100

    def paths(self, keys: list[str], _limit: int, _places: object, **_trees: object) -> list[DraftedTokens]:
        return [self.known.get(key, DraftedTokens()) for key in keys]

    def outcomes(self, outcomes: list[tuple[str, list[int]]]) -> list[Knowledge]:
        self.stats.num_frames += 1
        for key, tokens in outcomes:
            self.texts.get(key, []).extend(tokens)
        return [self.knowledge] * len(outcomes)

    def wait(self, _keys: object, _timeout: float) -> None:
        self.num_waits += 1
        self.now += 0.02
        self.stats.num_frames += bool(self.later)
        self.known = {**self.known, **self.later}

    def send_forced(self, certain: list[tuple[str, Any]]) -> None:
        self.forced = {key: tuple(tokens) for key, tokens in certain}

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


IDS = ["a", "b"]


def speculator(
    known: dict[str, DraftedTokens], later: dict[str, DraftedTokens], backup: Any = "jit"
) -> tuple[Speculator, Client]:
    client: Any = Client(known, later)
    found = Speculator(client, lookahead=4, backup=backup, clock=lambda: client.now)
    for each in IDS:
        found.begin(each, [1, 2, 3], [], Sampling(seed=0), 100)
    found._knowledge = dict.fromkeys(IDS, Knowledge.UNKNOWN)
    for _ in range(5):
        found.controller.times.note(1, 1.0, is_speculating=False)
    return found, client


LIKELY, UNLIKELY = DraftedTokens((7,), (0.9,)), DraftedTokens((7,), (0.01,))


def tokens_of(paths: list[DraftedTokens]) -> list[tuple[int, ...]]:
    return [tuple(path.tokens) for path in paths]


def test_rows_that_hit_do_not_wait_for_rows_that_miss() -> None:
    found, client = speculator({"a": LIKELY}, {"b": LIKELY})
    assert tokens_of(found.propose(IDS)) == [(7,), ()]
    assert (client.num_waits, found.proposed.num_ready) == (0, 1)


def test_what_arrived_while_tokens_were_settled_is_known_before_it_is_proposed() -> None:
    """It waited a whole step."""
    found, client = speculator({}, {})
    client.arrived = {"a": LIKELY}
    assert tokens_of(found.propose(IDS)) == [(7,), ()]
    assert client.num_waits == 0


def test_where_all_miss_one_step_is_waited_for() -> None:
    found, client = speculator({}, {"b": LIKELY})
    assert tokens_of(found.propose(IDS)) == [(), (7,)]
    assert (client.num_waits, found.proposed.num_ready) == (1, 0)
    assert found.proposed.waited == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("backup", "later", "num_waits", "proposed"),
    [
        ("none", {"a": LIKELY}, 0, ()),
        ("ngram", {"a": LIKELY}, 0, (9,)),
        ("jit", {"a": LIKELY}, 1, (7,)),
        ("jit", {}, 1, ()),
        ("auto", {"a": LIKELY}, 1, (7,)),
        ("auto", {}, 1, (9,)),
    ],
)
def test_what_a_row_without_a_speculation_does(
    backup: str, later: dict[str, DraftedTokens], num_waits: int, proposed: tuple[int, ...]
) -> None:
    """The draft would say 7 if it were waited for, the text 9."""
    found, client = speculator({}, later, backup)
    client.texts["a"] = [5, 6, 9, 5, 6]
    assert tokens_of(found.propose(["a"]))[0][:1] == proposed
    assert client.num_waits == num_waits


def test_waiting_ends_where_what_comes_is_not_worth_verifying() -> None:
    found, client = speculator({}, {"b": UNLIKELY})
    for _ in range(150):
        assert not any(tokens_of(found.propose(IDS)))
        client.known = {}
    assert client.num_waits < 110
    before = client.num_waits
    found.propose(IDS)
    assert client.num_waits == before


def test_a_draft_that_does_not_answer_is_waited_for_once() -> None:
    """A frozen one says nothing, whatever is asked of it; one that speaks again is worth another wait."""
    found, client = speculator({}, {})
    for _ in range(20):
        found.propose(IDS)
    assert client.num_waits == 1
    client.stats.num_frames += 1
    found.propose(IDS)
    found.propose(IDS)
    assert client.num_waits == 2


def test_a_draft_that_catches_up_is_not_sent_to_rest_but_one_that_never_does_is() -> None:
    """Back from the dead it has eight texts to read, and is late for all of them until it has."""
    found, client = speculator({}, {}, backup="none")
    client.knowledge = Knowledge.LATE
    num_rounds = 0
    while not client.is_paused and num_rounds < 400:
        found.propose(["a"])
        found.settle([Verified("a", [9], 0)])
        num_rounds += 1
    assert 100 < num_rounds < 300


def test_a_round_says_what_was_known_and_who_guessed() -> None:
    found, client = speculator({"a": LIKELY}, {}, backup="ngram")
    found.begin("b", [5, 6, 9, 5, 6], [], Sampling(seed=0), 100)
    assert tokens_of(found.propose(IDS))[1][:1] == (9,)
    outcomes = [Verified("a", [7, 8], 1), Verified("b", [4], 1), Verified("stranger", [4], 0)]
    assert found.settle(outcomes) == [Round("unknown", "draft"), Round("first", "ngram"), Round()]
    client.knowledge = Knowledge.LATE
    assert found.settle([Verified("a", [7], 0)]) == [Round("hit", "none")]
    found.forget("a")
    assert "a" not in found
    assert found.settle([Verified("a", [7], 0)]) == [Round("first", "none")]


def test_an_id_that_is_live_and_begins_again_is_another_request() -> None:
    found, client = speculator({"a": LIKELY}, {})
    found.settle([Verified("a", [7, 8], 1)])
    found.begin("a", [4, 4], [9], Sampling(seed=0), 100)
    assert client.texts["a"] == [4, 4, 9]
    assert found.settle([Verified("a", [7], 0)]) == [Round("first", "none")]


def test_what_must_follow_says_nothing_of_the_draft() -> None:
    """A draft is neither praised for a token that no other could have been, nor blamed for its absence."""
    found, client = speculator(
        {
            "a": DraftedTokens((7, 8), (1.0, 1.0), num_certain=2),
            "b": DraftedTokens((7, 8), (1.0, 0.5), num_certain=1),
            "c": DraftedTokens((7, 8), (1.0, 1.0)),
        },
        {},
    )
    before = found.controller._first_rate.value
    for _ in range(100):
        found.propose(["a"], {"a": object()})  # type: ignore[dict-item]
        assert found.settle([Verified("a", [7, 8, 9], 2)])[0].source == "grammar"
    assert found.controller._first_rate.value == before
    assert not found.stats.is_resting
    assert client.forced == {"a": (7, 8)}
    found.propose(["b"], {"b": object()})  # type: ignore[dict-item]
    assert client.forced == {"b": (7,)}
    assert found.settle([Verified("b", [7, 8, 9], 2)])[0].source == "draft"
    praised = found.controller._first_rate.value
    assert praised > before
    found.propose(["b"], {"b": object()})  # type: ignore[dict-item]
    found.settle([Verified("b", [7, 9], 2)])  # of its own tokens none
    assert found.controller._first_rate.value < praised
    found.propose(["c"], {"c": object()})  # type: ignore[dict-item]
    assert client.forced == {"c": ()}, "a draft that is sure of itself is not certain"
