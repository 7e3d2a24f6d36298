"""A draft's turn is shared by whoever sends: milliseconds and bytes, by tenant, peer and key."""

from collections import Counter, deque
from collections.abc import Iterator

import pytest

from benchmarks.ruled import hello
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import Close, Hello, Nodes, Open, Resync, Sampling, pack_ints
from ssd.draft.protocol.sockets import Heard
from ssd.draft.server import frames as draft_frames
from ssd.draft.server.frames import Intake
from tests.draft.crowd import Crowd

MESSAGE_SECONDS = 0.001


class Queue:
    def __init__(self) -> None:
        self.frames: deque[Heard] = deque()

    def receive(self, timeout: float) -> Heard | None:
        return self.frames.popleft() if self.frames else None

    def send(self, peer: bytes, frame: bytes) -> None: ...

    def close(self) -> None: ...


class Turns:
    """Frames whose bytes say how many messages they hold; each message takes a millisecond."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.now = 0.0
        self.link = Queue()
        self.done: Counter[str] = Counter()
        self.intake = Intake(
            self.link,
            lambda: self.now,
            tenant_of=lambda heard: heard.key,
            weight_of=lambda name: (weights or {}).get(name, 1.0),
        )

    def send(self, key: str, num_messages: int, size: int = 0) -> None:
        self.link.frames.append(Heard(key.encode(), str(num_messages).encode().ljust(size), key))

    def turn(self) -> list[bytes]:
        gone = self.intake.receive(0.0)
        self.intake.apply(self._messages, step_seconds=0.0)
        return gone

    def _messages(self, heard: Heard) -> Iterator[None]:
        for _ in range(int(heard.frame)):
            self.now += MESSAGE_SECONDS
            self.done[heard.key] += 1
            yield


def test_a_flood_waits_and_others_do_not() -> None:
    turns, rounds = Turns(), 20
    for _ in range(3):
        turns.send("flood", 1000)
    for number in range(1, rounds + 1):
        turns.send("honest", 1)
        before = turns.now
        turns.turn()
        assert turns.done["honest"] == number
        assert turns.now - before <= draft_frames.LEAST_SECONDS + MESSAGE_SECONDS
    assert turns.done["flood"] < rounds * draft_frames.LEAST_SECONDS / MESSAGE_SECONDS
    assert turns.intake.is_waiting


def test_time_is_shared_by_weight() -> None:
    turns = Turns({"a": 3.0})
    turns.send("a", 1000)
    turns.send("b", 1000)
    for _ in range(20):
        turns.turn()
    assert turns.done["a"] == pytest.approx(3 * turns.done["b"], rel=0.1)


def test_whoever_comes_later_is_level_with_the_others() -> None:
    turns = Turns()
    turns.send("early", 1000)
    for _ in range(10):
        turns.turn()
    turns.send("late", 1000)
    before = turns.done["early"]
    for _ in range(10):
        turns.turn()
    assert turns.done["late"] == pytest.approx(turns.done["early"] - before, abs=2)


def test_one_alone_has_all_its_messages_applied_in_the_end() -> None:
    turns = Turns()
    for _ in range(5):
        turns.send("alone", 30)
    for _ in range(20):
        turns.turn()
    assert turns.done["alone"] == 150
    assert turns.intake.num_bytes == 0


@pytest.mark.parametrize("num_peers", [1, 4])
def test_more_bytes_than_are_held_cost_the_peer_that_sent_them(num_peers: int) -> None:
    turns = Turns()
    frame = b"1000".ljust(4 << 20)
    for place in range(64):
        turns.link.frames.append(Heard(b"peer %d" % (place % num_peers), frame, "flood"))
    turns.send("honest", 1)
    gone = turns.turn()
    assert gone
    assert turns.done["honest"] == 1
    assert turns.intake.num_bytes <= draft_frames.MAX_BYTES_OF_KEY


def test_of_a_key_with_too_many_bytes_the_peer_that_has_the_most_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the one whose frame happens to arrive, nor a larger one of another key."""
    monkeypatch.setattr(draft_frames, "MAX_BYTES_OF_KEY", 1000)
    turns = Turns()
    for peer, size, key in (
        (b"other", 900, "theirs"),
        (b"large", 500, "ours"),
        (b"small", 400, "ours"),
        (b"last", 200, "ours"),
    ):
        turns.link.frames.append(Heard(peer, b"1000".ljust(size), key))
    assert turns.turn() == [b"large"]
    assert turns.intake.num_bytes == 900 + 400 + 200


def test_who_waits_no_more_is_forgotten_though_another_waits_on() -> None:
    turns = Turns()
    turns.send("flood", 10_000)
    for number in range(20):
        turns.send(f"tenant {number}", 1)
        turns.turn()
    assert turns.intake._spent.keys() == {"flood"}


def opening(seq: int) -> Open:
    return Open(seq, 1, pack_ints([2, 3, 4 + seq % 300]), 3, 100, 4, Sampling(seed=1))


def test_a_frame_of_many_openings_does_not_hold_a_turn_up() -> None:
    """The service's clock goes on by a millisecond whenever it is asked."""
    crowd = Crowd(sequences=64)
    client = crowd.client("flood")
    (replica,) = client.pool.replicas
    assert replica.connection is not None

    def ticking() -> float:
        crowd.now += 0.001
        return crowd.now

    crowd.service._intake._clock = ticking
    for seq in range(60):
        replica.connection.post(opening(1000 + seq))
    replica.connection.flush()
    crowd.service.turn(0.0)
    assert 0 < crowd.scheduler.num_sessions <= 10
    for _ in range(30):
        crowd.service.turn(0.0)
    assert crowd.scheduler.num_sessions == 60
    crowd.service.check_integrity()


def test_a_tree_is_sent_once_a_turn_however_often_it_is_asked_for() -> None:
    crowd = Crowd()
    client = crowd.client("asks")
    (replica,) = client.pool.replicas
    assert replica.connection is not None
    replica.connection.post(opening(7))
    replica.connection.flush()
    crowd.service.turn(0.0)
    for _ in range(500):
        replica.connection.post(Resync(7, 1))
    replica.connection.flush()
    box = crowd.hub.outboxes[b"asks"]
    box.clear()
    crowd.service.turn(0.0)
    said = [message for frame in box for message in decode(frame, vocab_size=400)]
    whole = [each for each in said if isinstance(each, Nodes) and each.columns().full.any()]
    assert len(whole) == 1


def test_a_text_that_the_draft_cannot_hold_is_declined_before_it_is_unpacked() -> None:
    crowd = Crowd()
    client = crowd.client("long")
    (replica,) = client.pool.replicas
    assert replica.connection is not None
    box = crowd.hub.outboxes[b"long"]
    box.clear()
    replica.connection.post(Open(7, 1, bytes(4 * 100_000), 3, 200_000, 4, Sampling(seed=1)))
    replica.connection.flush()
    crowd.service.turn(0.0)
    said = [message for frame in box for message in decode(frame, vocab_size=400)]
    assert [each.reason for each in said if isinstance(each, Close)] == [
        "the draft's context ends at 4096 tokens"
    ]


def test_so_many_engines_of_one_key_are_taken_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_frames, "MAX_PEERS_OF_KEY", 3)
    crowd = Crowd()
    for number in range(5):
        crowd.hub.outboxes[b"%d" % number] = deque()
        crowd.hub.inbox.append(Heard(b"%d" % number, encode([hello("same")]), "alice"))
    crowd.hub.outboxes[b"bob"] = deque()
    crowd.hub.inbox.append(Heard(b"bob", encode([hello("other")]), "bob"))
    crowd.service.turn(0.0)
    greetings = {
        peer: message
        for peer, frames in crowd.hub.outboxes.items()
        for message in decode(frames[0], vocab_size=400)
        if isinstance(message, Hello)
    }
    assert [bool(greetings[b"%d" % number].refusal) for number in range(5)] == [False] * 3 + [True] * 2
    assert not greetings[b"bob"].refusal
