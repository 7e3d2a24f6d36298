"""The line is looked after by a thread of its own: while the host is idle, when it ends, when it forks."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, ConnectionState, FixedSources
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import (
    MAX_TOKENS,
    PROTOCOL_VERSION,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    Nodes,
    OfferOpen,
    Open,
    Resync,
    Sampling,
    TreePart,
    unpack_ints,
)
from ssd.draft.protocol.sockets import SocketError

HELLO = Hello(PROTOCOL_VERSION, "same", 100, "someone", "one", 512)


class Link:
    """The other end answers at once: with a greeting, to ASK with OFFER, and to each OPEN with two nodes."""

    def __init__(self, greets: Hello) -> None:
        self._greets = greets
        self.answers: list[bytes] = []
        self.heard: list[AnyMessage] = []
        self.num_bytes = 0
        self.is_closed = self.has_hung_up = False

    @property
    def opened(self) -> list[Open]:
        return [each for each in self.heard if isinstance(each, Open)]

    def send(self, frame: bytes) -> None:
        self.num_bytes += len(frame)
        for message in decode(frame, vocab_size=100):
            self.heard.append(message)
            if isinstance(message, AskOpen):
                self.answers.append(encode([OfferOpen(message.seq, message.epoch)]))
            if isinstance(message, Hello):
                self.answers.append(encode([self._greets]))
            if isinstance(message, Open):
                length = len(message.tokens) // 4
                nodes = ([1, 2], [0, 1], [7, 8], [-0.1, -0.1])
                part = TreePart(message.seq, message.epoch, 0, 0, 0, length, *nodes)
                self.answers.append(encode([Nodes.of([part])]))

    def says(self, message: AnyMessage) -> None:
        self.answers.append(encode([message]))

    def overfull(self) -> str:
        return ""

    def receive(self, timeout: float) -> bytes | None:
        if not self.answers and self.has_hung_up:
            raise SocketError("the draft has hung up")
        return self.answers.pop(0) if self.answers else None

    def close(self) -> None:
        self.is_closed = True


class Source:
    def __init__(self, greets: Hello = HELLO) -> None:
        self._greets = greets
        self.links: list[Link] = []
        self.broken = ""
        self.errors: list[Exception] = []
        self.is_closed = False
        self.timeout = 60.0

    name = "a draft"

    def connect(self) -> Connection | None:
        if self.errors:
            raise self.errors.pop()
        self.broken = ""
        self.links.append(Link(self._greets))
        return Connection(self.links[-1], HELLO, time.monotonic, timeout=self.timeout, hello_timeout=5.0)

    def is_broken(self) -> str:
        return self.broken

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def client(source: Source) -> Any:
    found = DraftClient(FixedSources(source), lookahead=4)
    found.pool.start()
    yield found
    found.pool.close()


@pytest.fixture
def unkept(source: Source) -> DraftClient:
    """One that is ready and has no thread: nothing happens but what a test does."""
    client = DraftClient(FixedSources(source), lookahead=4)
    client.pool.tend()
    client.pool.tend()
    assert client.is_ready
    return client


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def keepers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ssd-draft-reconnect"]


def test_a_line_comes_back_and_is_read_although_the_host_is_idle(source: Source, client: DraftClient) -> None:
    until(lambda: client.is_ready)
    client.follow("a", [1, 2, 3], 3, Sampling(seed=0), 100)
    for num_links in (1, 2, 3):
        until(lambda: len(source.links) == num_links and client.paths(["a"], 4)[0].tokens)  # noqa: B023
        assert client.paths(["a"], 4)[0].tokens == [7, 8]
        source.broken = "it ended"
    until(lambda: client.stats.num_losses == 3)
    until(lambda: source.links[0].is_closed)


def test_whoever_watches_is_told_although_the_host_is_idle(source: Source) -> None:
    """A dead draft is an alarm of its own, whether or not anybody asks for anything."""
    source.timeout = 1.0
    client, told = DraftClient(FixedSources(source), lookahead=4), list[bool]()
    client.pool.watch(told.append)
    client.pool.start()
    try:
        until(lambda: told == [True])
        # Nothing is sent and nothing comes: that of a living draft would be signs of life.
        until(lambda: told[:3] == [True, False, True])
        assert client.pool.last_loss == "the draft has said nothing for 1.0 s"
    finally:
        client.pool.close()


def test_what_fails_in_the_thread_is_told_and_tried_again(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.errors = [RuntimeError("nobody thought of this")]
    client = DraftClient(FixedSources(source), lookahead=4)
    with caplog.at_level(logging.ERROR):
        client.pool.start()
        until(lambda: client.is_ready)
    assert "nobody thought of this" in caplog.text
    client.pool.close()


def test_closing_ends_the_thread_and_everything_else(source: Source) -> None:
    before = len(keepers())
    client = DraftClient(FixedSources(source), lookahead=4)
    client.pool.start()
    until(lambda: client.is_ready)
    assert len(keepers()) == before + 1
    client.pool.close()
    client.pool.close()
    assert len(keepers()) == before
    assert source.is_closed
    assert source.links[0].is_closed
    assert client.outcomes([("a", [1])]) == [Knowledge.UNHEARD]


def test_whoever_forgets_to_close_leaves_no_thread(source: Source) -> None:
    import gc

    before = len(keepers())
    client = DraftClient(FixedSources(source), lookahead=4)
    client.pool.start()
    del client
    gc.collect()
    until(lambda: len(keepers()) == before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_silent_and_the_parent_goes_on(source: Source, client: DraftClient) -> None:
    until(lambda: client.is_ready)
    client.follow("a", [1, 2, 3], 3, Sampling(seed=0), 100)
    with client.pool.lock:  # As the thread may hold it at that moment.
        pid = os.fork()
        if pid == 0:
            silent = not client.is_ready and not client.paths(["a"], 4)[0].tokens
            client.outcomes([("a", [4])])
            client.pool.close()
            os._exit(0 if silent and not source.is_closed else 1)
    assert os.waitpid(pid, 0)[1] == 0
    until(lambda: client.paths(["a"], 4)[0].tokens == [7, 8])


def test_nothing_is_proposed_beyond_the_longest_text(client: DraftClient) -> None:
    until(lambda: client.is_ready)
    client.follow("a", [1, 2, 3], 3, Sampling(seed=0), 5)
    client.pool.read()
    assert client.paths(["a"], 4)[0].tokens == [7]
    client.outcomes([("a", [7])])
    assert not client.paths(["a"], 4)[0].tokens


def test_a_draft_that_refuses_is_asked_seldom_and_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    source = Source(Hello(1, "same", 100, "old", "x", 0, "install the same version"))
    client = DraftClient(FixedSources(source), lookahead=4, clock=lambda: now, draw=lambda: 0.0)
    for _ in range(240):
        client.pool.tend()
        client.pool.read()
        now += 0.5
    assert len(source.links) == 4
    assert client.stats.num_losses == 0
    assert caplog.text.count("speculation is off") == 1


def test_what_cannot_be_taken_in_costs_a_line(
    source: Source, client: DraftClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: client.is_ready)

    def fail(_: object, **_of: int) -> None:
        raise IndexError("nobody thought of this")

    monkeypatch.setattr(client._mirrors, "take", fail)
    client.follow("a", [1, 2, 3], 3, Sampling(seed=0), 100)
    client.pool.read()
    assert "nobody thought of this" in client.pool.last_loss
    monkeypatch.undo()
    until(lambda: client.is_ready and client.paths(["a"], 4)[0].tokens)


def test_a_text_that_is_too_long_to_be_told_costs_nobody_the_line(
    source: Source, client: DraftClient
) -> None:
    until(lambda: client.is_ready)
    client.follow("long", [1] * (MAX_TOKENS + 1), 3, Sampling(seed=0), 1 << 30)
    client.follow("short", [1, 2, 3], 3, Sampling(seed=0), 100)
    until(lambda: client.paths(["short"], 4)[0].tokens)
    assert len(source.links) == 1
    assert client.stats.num_declined == 1


def test_a_text_with_a_token_that_the_draft_does_not_have_is_not_told(
    source: Source, client: DraftClient
) -> None:
    until(lambda: client.is_ready)
    for key, token in (("its last", 99), ("the first beyond", 100)):
        client.follow(key, [1, token], 2, Sampling(seed=0), 100)
    assert [len(each.opened) for each in source.links] == [1]
    assert client.stats.num_declined == 1
    client.outcomes([("its last", [100])])
    assert client.stats.num_declined == 2


def test_a_draft_that_hangs_is_given_up_however_much_it_is_told() -> None:
    now = 0.0
    connection = Connection(Link(HELLO), HELLO, lambda: now, timeout=1.0, hello_timeout=5.0)
    assert not list(connection.receive())
    assert connection.state is ConnectionState.READY
    for _ in range(12):
        now += 0.1
        connection.post(Close(0, 1))
        connection.flush()
        assert not list(connection.receive())
    assert (connection.state, connection.reason) == (
        ConnectionState.LOST,
        "the draft has said nothing for 1.0 s",
    )


def test_where_frames_are_missing_the_whole_tree_is_asked_for(source: Source, unkept: DraftClient) -> None:
    unkept.follow("a", [1, 2, 3], 3, Sampling(seed=0), 100)
    unkept.pool.read()
    [link] = source.links
    [opened] = link.opened
    link.says(Nodes.of([TreePart(opened.seq, opened.epoch, 5, 0, 0, 3)]))
    unkept.pool.read()
    for _ in range(2):  # The second time the answer is still under way.
        unkept.outcomes([("a", [7])])
    assert [each for each in link.heard if isinstance(each, Resync)] == [Resync(opened.seq, opened.epoch)]
    assert unkept.stats.num_resyncs == 1


def test_a_draft_that_misses_tokens_is_told_them_under_a_new_epoch(
    source: Source, unkept: DraftClient
) -> None:
    unkept.follow("a", [1, 2, 3], 3, Sampling(seed=0), 100)
    unkept.outcomes([("a", [7])])
    unkept.outcomes([("a", [8])])
    [link] = source.links
    [opened] = link.opened
    for _ in range(2):  # What it says of an older epoch means nothing.
        link.says(Resync(opened.seq, opened.epoch))
        unkept.pool.read()
    _, again = link.opened
    assert (again.seq, again.epoch > opened.epoch) == (opened.seq, True)
    assert unpack_ints(again.tokens).tolist() == [1, 2, 3, 7, 8]
    assert unkept.stats.num_resyncs == 1


def test_a_draft_that_rests_is_told_nothing(source: Source, unkept: DraftClient) -> None:
    unkept.follow("a", [1, 2, 3], 3, Sampling(seed=0), 100)
    [link] = source.links
    link.heard.clear()
    unkept.pause()
    unkept.follow("b", [1], 1, Sampling(seed=0), 100)
    unkept.outcomes([("a", [4]), ("b", [5])])
    assert [type(each) for each in link.heard] == [Close]
    unkept.resume()
    assert [unpack_ints(each.tokens).tolist() for each in link.opened] == [[1, 5], [1, 2, 3, 4]]


def test_after_three_frames_of_nonsense_the_line_is_given_up(source: Source, unkept: DraftClient) -> None:
    for _ in range(2):
        source.links[0].answers.append(b"\xc1")
        unkept.pool.read()
    assert unkept.is_ready
    source.links[0].answers.append(b"\xc1")
    unkept.pool.read()
    assert not unkept.is_ready
    assert "invalid frames" in unkept.pool.last_loss


def test_a_program_that_forgets_to_close_ends_all_the_same() -> None:
    """The line's thread is no daemon: it closes what nobody closed, and it does so once nothing else runs."""
    program = """
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from tests.draft.client.test_reconnect import Source

class Told(Source):
    def close(self):
        print("closed")

client = DraftClient(FixedSources(Told()), lookahead=4)
client.pool.start()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=120, check=True, capture_output=True, text=True
    )
    assert ended.stdout == "closed\n"
