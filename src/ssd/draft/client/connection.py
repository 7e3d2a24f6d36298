"""A connection to one draft, from its HELLO until it is lost; and the thread that reconnects.

A draft sends signs of life, also to a target that asks for nothing: silence longer than the timeout, an
invalid frame, or a socket that is full end the connection for good. The replica (replica.py) then makes
another, and the reconnect thread calls it while the target is idle.

The thread lives as long as the pool that it serves: until told to stop, until the pool is gone, or until the
program's main thread has ended, and then it closes the pool. A forked child has neither this thread nor
connections. Knows a socket, a clock, threads and forks.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Protocol

from ssd.draft.protocol.codec import FrameError, decode, encode
from ssd.draft.protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_MESSAGES,
    PROTOCOL_VERSION,
    AnyMessage,
    Hello,
)
from ssd.draft.protocol.sockets import EngineSocket, SocketError

logger = logging.getLogger(__name__)

_FRAMES_AT_ONCE = 256
"""Frames read in one call, so that a draft that sends without end does not stop the target."""
_MAX_NONSENSE = 3
"""Invalid frames before the connection is dropped."""


class ConnectionState(Enum):
    CONNECTING = "greeting"
    READY = "ready"
    REFUSED = "refused"
    LOST = "lost"


class Connection:
    def __init__(
        self,
        link: EngineSocket,
        hello: Hello,
        clock: Callable[[], float],
        *,
        timeout: float,
        hello_timeout: float,
    ) -> None:
        """Idle timeouts in seconds: `hello_timeout` before HELLO, `timeout` afterwards."""
        self._link = link
        self._clock = clock
        self._timeout, self._greeting_timeout = timeout, hello_timeout
        self._outbox: list[AnyMessage] = []
        self._last_heard = clock()
        self._num_nonsense = 0
        self._tokenizer = hello.tokenizer
        self.state = ConnectionState.CONNECTING
        self.reason = ""
        """Why it is refused or lost."""
        self.vocab_size = hello.vocab_size
        """Token ids that both sides know."""
        self.name = ""
        self.max_model_len = 0
        """The longest text that the draft can read; 0: it has not said."""
        self._send(encode([hello]))

    def post(self, message: AnyMessage) -> None:
        """Queues a message until `flush`: the messages of one step are sent in one frame."""
        self._outbox.append(message)

    def flush(self) -> None:
        if self._outbox and self.state is ConnectionState.READY:
            messages, self._outbox = self._outbox, []
            for frame in _frames(messages):
                self._send(frame)

    def receive(self, timeout: float = 0.0, *, most: int = _FRAMES_AT_ONCE) -> Iterator[AnyMessage]:
        """The messages of at most `most` frames; waits up to `timeout` seconds for the first."""
        for _ in range(most):
            if self.state not in (ConnectionState.CONNECTING, ConnectionState.READY):
                return
            frame = self._next_frame(timeout)
            if frame is None:
                self._check_silence()
                return
            timeout = 0.0
            self._last_heard = self._clock()
            yield from self._messages(frame)

    def overfull(self) -> str:
        """Why the connection must end: the draft sends far more than is read. Empty: it need not."""
        return self._link.overfull()

    def close(self) -> None:
        self._link.close()

    def lose(self, reason: str) -> None:
        if self.state is not ConnectionState.REFUSED:
            self.state, self.reason = ConnectionState.LOST, reason

    def _next_frame(self, timeout: float) -> bytes | None:
        try:
            return self._link.receive(timeout)
        except SocketError as error:
            self.lose(str(error))
            return None

    def _messages(self, frame: bytes) -> Iterator[AnyMessage]:
        try:
            messages = decode(frame, vocab_size=self.vocab_size)
        except FrameError as error:
            self._num_nonsense += 1
            logger.warning("a frame from the draft was refused: %s", error)
            if self._num_nonsense >= _MAX_NONSENSE:
                self.lose(f"the draft sends invalid frames: {error}")
            return
        for message in messages:
            if isinstance(message, Hello):
                self._greeted(message)
            else:
                yield message

    def _greeted(self, hello: Hello) -> None:
        if hello.refusal:
            self.state, self.reason = ConnectionState.REFUSED, hello.refusal
        elif hello.version != PROTOCOL_VERSION or hello.tokenizer != self._tokenizer:
            self.state, self.reason = ConnectionState.REFUSED, f"{hello.name} is another version or family"
        elif self.state is ConnectionState.READY:
            # A second HELLO tells the target to reconnect: the draft was restarted, or got an invalid frame.
            self.lose("the draft has forgotten this engine")
        else:
            self.state, self.name = ConnectionState.READY, hello.name
            self.vocab_size = min(self.vocab_size, hello.vocab_size)
            self.max_model_len = hello.max_model_len

    def _send(self, frame: bytes) -> None:
        try:
            self._link.send(frame)
        except SocketError as error:
            self.lose(str(error))

    def _check_silence(self) -> None:
        """A draft sends signs of life whether it is asked anything or not."""
        borne = self._timeout if self.state is ConnectionState.READY else self._greeting_timeout
        if self._clock() - self._last_heard > borne:
            self.lose(f"the draft has said nothing for {borne:.1f} s")


def _frames(messages: Sequence[AnyMessage]) -> list[bytes]:
    """One frame, or several where one would be larger than the other side takes."""
    frame = encode(messages)
    fits = len(frame) <= MAX_FRAME_BYTES and len(messages) <= MAX_MESSAGES
    if fits or len(messages) == 1:
        return [frame]
    half = len(messages) // 2
    return _frames(messages[:half]) + _frames(messages[half:])


_TICK_SECONDS = 0.05
"""Between two calls of `tend`."""


class Reconnectable(Protocol):
    """A pool of drafts, as the reconnect thread sees it."""

    def tend(self) -> None: ...

    def lose(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Reconnector(Protocol):
    """Calls `tend` every few milliseconds until it is stopped. Outside tests this is the reconnect thread."""

    def stop(self) -> None: ...


_open_pools: "weakref.WeakSet[Reconnectable]" = weakref.WeakSet()


class ReconnectThread:
    def __init__(self, kept: Reconnectable) -> None:
        self._is_over = threading.Event()
        _open_pools.add(kept)
        # A weak reference, so that a pool that nobody uses can be collected.
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(kept), self._is_over), name="ssd-draft-reconnect"
        )
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _run(reference: "weakref.ref[Reconnectable]", is_over: threading.Event) -> None:
    while not is_over.wait(_TICK_SECONDS):
        kept = reference()
        if kept is None:
            return
        try:
            if not threading.main_thread().is_alive():
                kept.close()
                return
            kept.tend()
        except Exception as error:
            logger.exception("reconnecting failed; all connections are dropped")
            kept.lose(f"{type(error).__name__}: {error}")
        del kept


def _fall_silent() -> None:
    for each in list(_open_pools):
        each.abandon()


os.register_at_fork(after_in_child=_fall_silent)
