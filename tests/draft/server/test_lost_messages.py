"""Messages that get lost: sequences are opened again, room is asked for again, connections are given up."""

from collections.abc import Iterable

import pytest

from benchmarks.client_work import DraftHere
from benchmarks.ruled import hello, outcome, prompt_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, ConnectionState, FixedSources
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import (
    AnyMessage,
    AskOpen,
    Close,
    Open,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    Stats,
)


class Pair:
    """A target with one sequence, and a draft, in virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.draft = DraftHere(clock=self._clock)
        self.client = DraftClient(FixedSources(self.draft), lookahead=4, clock=self._clock)
        self.last = prompt_of(0)[-1]
        while not self.client.is_ready:
            self.client.pool.tend()
            self.draft.turn(1)

    def _clock(self) -> float:
        return self.now

    def begin(self, times: int = 1) -> None:
        """`times`: how often the prompt says the same. Room for long texts is asked for."""
        tokens = times * prompt_of(0)
        self.client.follow("text", tokens, len(tokens), Sampling(seed=1), 3000)

    def gets_path_within(self, rounds: int) -> bool:
        """Runs up to this many rounds; returns whether the draft proposes tokens."""
        for _ in range(rounds):
            self.now += 0.1
            self.draft.turn(2)
            self.client.pool.tend()
            self.client.pool.read()
            [path] = self.client.paths(["text"], 4)
            if path.tokens:
                return True
            tokens = outcome(self.last, ())
            self.last = tokens[-1]
            self.client.outcomes([("text", tokens)])
        return False

    def lost(self) -> list[AnyMessage]:
        """What the target has sent, which the draft does not get."""
        frames = [*self.draft.frames_to_draft]
        self.draft.frames_to_draft.clear()
        return [each for frame in frames for each in decode(frame, vocab_size=400)]

    def answers_to(self, message: AnyMessage) -> list[AnyMessage]:
        self.draft.frames_to_engine.clear()
        self.draft.frames_to_draft.append(encode([message]))
        self.draft.turn(1)
        return [each for frame in self.draft.frames_to_engine for each in decode(frame, vocab_size=400)]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_sequence_whose_opening_was_lost_is_opened_again(pair: Pair) -> None:
    pair.begin()
    assert [type(each) for each in pair.lost()] == [Open]
    assert pair.gets_path_within(10)


@pytest.mark.parametrize("lost", ["question", "answer"])
def test_room_is_asked_for_again_after_two_seconds_without_an_answer(pair: Pair, lost: str) -> None:
    pair.begin(times=50)
    if lost == "answer":
        pair.draft.turn(1)
        pair.draft.frames_to_engine.clear()
    else:
        assert [type(each) for each in pair.lost()] == [AskOpen]
    # A round takes 0.1 s.
    assert not pair.gets_path_within(19)
    assert pair.gets_path_within(10)


def test_a_sequence_is_opened_again_if_the_drafts_close_was_lost(pair: Pair) -> None:
    pair.begin()
    assert pair.gets_path_within(10)
    epoch = int(pair.client.mirrors.epoch[0])
    # The draft drops the sequence, and the target does not hear of it.
    pair.answers_to(Close(0, epoch))
    pair.draft.frames_to_engine.clear()
    pair.client.outcomes([("text", [3])])
    pair.last = 3
    assert pair.gets_path_within(10)
    assert int(pair.client.mirrors.epoch[0]) != epoch


def test_an_opening_that_was_lost_leaves_the_older_epoch_as_it_is(pair: Pair) -> None:
    pair.begin()
    assert pair.gets_path_within(10)
    epoch = int(pair.client.mirrors.epoch[0])
    answers = pair.answers_to(outcomes_of([0], epoch + 7))
    assert [each for each in answers if isinstance(each, Resync)] == [Resync(0, epoch + 7)]
    # The draft still has the older one.
    assert not any(isinstance(each, Resync) for each in pair.answers_to(outcomes_of([0], epoch)))


def test_a_text_that_is_sent_before_the_answer_to_its_question_is_not_asked_about_again(pair: Pair) -> None:
    pair.begin(times=50)
    with pair.client.pool.lock:
        # As after a forced token that was not decided.
        pair.client._router.open(pair.client._sessions["text"])
        pair.client.pool.flush()
    assert pair.gets_path_within(30)
    epoch = int(pair.client.mirrors.epoch[0])
    pair.now += 10.0
    pair.client.pool.tend()
    pair.client.check_integrity()
    assert int(pair.client.mirrors.epoch[0]) == epoch


def test_an_end_whose_opening_was_lost_ends_the_older_epoch(pair: Pair) -> None:
    pair.begin()
    assert pair.gets_path_within(10)
    epoch = int(pair.client.mirrors.epoch[0])
    pair.draft.frames_to_draft.append(encode([Close(0, epoch + 1)]))
    pair.draft.turn(1)
    assert Resync(0, epoch) in pair.answers_to(outcomes_of([0], epoch))


class OnlyStats:
    """A draft's end of a connection on which HELLO was lost: it says every 2 seconds that it is there."""

    def __init__(self) -> None:
        self.now, self._spoke_at = 0.0, 0.0

    def clock(self) -> float:
        return self.now

    def send(self, frame: bytes) -> None:
        pass

    def receive(self, timeout: float) -> bytes | None:
        if self.now - self._spoke_at < 2.0:
            return None
        self._spoke_at = self.now
        return encode([Stats(0, 0, 0.0, 0, 0.0)])

    def overfull(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_a_connection_on_which_hello_was_lost_is_given_up() -> None:
    link = OnlyStats()
    connection = Connection(link, hello("target"), link.clock, timeout=3.0, hello_timeout=3.0)
    while connection.state is ConnectionState.CONNECTING and link.now < 20.0:
        link.now += 0.1
        assert [*connection.receive()] == []
    assert connection.state is ConnectionState.LOST
    assert link.now < 5.0


def test_unknown_sequences_are_answered_some_at_a_time(pair: Pair) -> None:
    """A peer that makes them up gets few answers, and one that lost them asks again."""
    answers = pair.answers_to(outcomes_of(range(3000), 1))
    asked = [each.seq for each in answers if isinstance(each, Resync)]
    assert 0 < len(asked) < 1000
    answers = pair.answers_to(outcomes_of(range(len(asked), 2 * len(asked)), 1))
    assert [each.seq for each in answers if isinstance(each, Resync)] == [each + len(asked) for each in asked]


def outcomes_of(seqs: Iterable[int], epoch: int) -> Outcome:
    mine = list(seqs)
    heads = [mine, *([each] * len(mine) for each in (epoch, 1, 0, 1))]
    return Outcome.of(OutcomeHeads(*heads), [5] * len(mine))  # type: ignore[arg-type]
