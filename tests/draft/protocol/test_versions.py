"""Sides of different versions meet: each says plainly what to install, in a form that the other can read."""

from collections import deque

import msgspec
import pytest

from benchmarks.ruled import hello
from ssd.draft.client.connection import Connection, ConnectionState
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello
from tests.draft.crowd import Crowd, Spoke

VERSION = PROTOCOL_VERSION


def spoken(version: int, oldest: int) -> Hello:
    return msgspec.structs.replace(hello("other"), version=version, oldest=oldest)


def answer_of_draft(frame: bytes) -> bytes:
    crowd = Crowd()
    spoke = Spoke(crowd.hub, b"engine", "")
    spoke.send(frame)
    crowd.service.turn(0.0)
    answer = spoke.receive(0.0)
    assert answer is not None
    return answer


class OldDraft:
    """An engine's socket to a draft that always answers the same."""

    def __init__(self, answer: bytes) -> None:
        self.answers = deque([answer])

    def send(self, frame: bytes) -> None:
        pass

    def receive(self, timeout: float) -> bytes | None:
        return self.answers.popleft() if self.answers else None

    def overfull(self) -> str:
        return ""

    def close(self) -> None:
        pass


def connection_to(answer: bytes) -> Connection:
    connection = Connection(OldDraft(answer), hello("target"), lambda: 0.0, timeout=1.0, hello_timeout=1.0)
    assert not [*connection.receive()]
    return connection


@pytest.mark.parametrize(
    ("version", "oldest", "refused"),
    [
        (VERSION, VERSION, False),
        (VERSION + 1, VERSION, False),
        (VERSION + 2, VERSION + 1, True),
        (VERSION - 1, VERSION - 2, True),
        (VERSION - 1, 0, True),
    ],
)
def test_both_sides_take_the_same_versions(version: int, oldest: int, refused: bool) -> None:
    other = spoken(version, oldest)
    [answer] = decode(answer_of_draft(encode([other])), vocab_size=400)
    assert isinstance(answer, Hello)
    assert bool(answer.refusal) == refused
    assert answer.versions == range(VERSION, VERSION + 1)
    connection = connection_to(encode([other]))
    assert (connection.state is ConnectionState.REFUSED) == refused
    assert "install" in connection.reason or not refused


def test_a_later_hello_with_other_fields_and_no_refusal_is_read() -> None:
    fields = msgspec.msgpack.decode(encode([spoken(VERSION + 1, VERSION)]))[0]
    later = msgspec.msgpack.encode([{"software": "another", **fields, "limits": {"frames": 3}}])
    assert connection_to(later).state is ConnectionState.READY
    [answer] = decode(answer_of_draft(later), vocab_size=400)
    assert isinstance(answer, Hello)
    assert not answer.refusal
