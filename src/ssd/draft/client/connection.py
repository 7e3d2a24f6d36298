"""Connections to drafts, and what makes them: addresses, DNS names, child processes.

A connection lasts from its HELLO until it is lost. A draft sends signs of life, also to a target that asks
for nothing: silence longer than the timeout, an invalid frame, or a socket that is full end the connection
for good. The replica (replica.py) then makes another, by its source.

Of sources only `close` blocks. Knows sockets, a clock, names and child processes; does not know sessions.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Protocol

from ssd.draft.protocol.codec import FrameError, decode, encode
from ssd.draft.protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_MESSAGES,
    AnyMessage,
    Hello,
    version_fault,
)
from ssd.draft.protocol.sockets import EngineSocket, Keys, SocketError, ZmqEngineSocket, check_address
from ssd.processes.child import Child
from ssd.processes.sockets import private_address, remove_socket

logger = logging.getLogger(__name__)

_FRAMES_AT_ONCE = 256
"""Frames read in one call, so that a draft that sends without end does not stop the target."""
_MAX_NONSENSE = 3
"""Invalid frames before the connection is dropped."""
_ASK_SECONDS = 5.0
"""Time between two DNS lookups."""
_STAY_SECONDS = 60.0
"""How long an address is kept that answers no longer contain: a name server may return a subset each time."""
_BY_NAME = "dns://"
START_SECONDS = 600.0
"""A large draft may take minutes to load; a process that ends is noticed at once."""


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
        self._timeout, self._hello_timeout = timeout, hello_timeout
        self._outbox: list[AnyMessage] = []
        self._last_heard = clock()
        self._num_nonsense = 0
        self._hello = hello
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
            if self.state is ConnectionState.READY:
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
            elif self.state is ConnectionState.READY:
                # Before HELLO nothing counts, not even as a sign of life: its HELLO may have been lost.
                yield message

    def _greeted(self, hello: Hello) -> None:
        if hello.refusal:
            self._refuse(hello.refusal)
        elif fault := version_fault(draft=hello, engine=self._hello):
            self._refuse(fault)
        elif hello.tokenizer != self._hello.tokenizer:
            self._refuse(f"{hello.name} has another tokenizer: use a draft of the same family")
        elif self.state is ConnectionState.READY:
            # A second HELLO tells the target to reconnect: the draft was restarted, or got an invalid frame.
            self.lose("the draft has forgotten this engine")
        else:
            self.state, self.name = ConnectionState.READY, hello.name
            self._last_heard = self._clock()
            self.vocab_size = min(self.vocab_size, hello.vocab_size)
            self.max_model_len = hello.max_model_len

    def _refuse(self, reason: str) -> None:
        self.state, self.reason = ConnectionState.REFUSED, reason

    def _send(self, frame: bytes) -> None:
        try:
            self._link.send(frame)
        except SocketError as error:
            self.lose(str(error))

    def _check_silence(self) -> None:
        """A draft sends signs of life whether it is asked anything or not."""
        longest = self._timeout if self.state is ConnectionState.READY else self._hello_timeout
        if self._clock() - self._last_heard > longest:
            self.lose(f"the draft has said nothing for {longest:.1f} s")


def _frames(messages: Sequence[AnyMessage]) -> list[bytes]:
    """One frame, or several where one would be larger than the other side takes."""
    frame = encode(messages)
    fits = len(frame) <= MAX_FRAME_BYTES and len(messages) <= MAX_MESSAGES
    if fits or len(messages) == 1:
        return [frame]
    half = len(messages) // 2
    return _frames(messages[:half]) + _frames(messages[half:])


class DraftSource(Protocol):
    """Connects to one draft."""

    def connect(self) -> Connection | None:
        """A new connection, or None while it is too early for one."""
        ...

    def is_broken(self) -> str:
        """Why the connection is broken, e.g. because its process ended. Empty: it is not."""
        ...

    @property
    def name(self) -> str:
        """The same name for the same draft, in every target."""
        ...

    def close(self) -> None: ...


class Sources(Protocol):
    """Finds the drafts that exist now. Only `close` blocks."""

    def current(self) -> Sequence[DraftSource]:
        """The same object for as long as it is the same draft."""
        ...

    def problem(self) -> str:
        """Why there is no draft; empty where there is one, or the search goes on."""
        ...

    def close(self) -> None: ...


class FixedSources:
    """A fixed list of drafts."""

    def __init__(self, *sources: DraftSource) -> None:
        self._sources = sources

    def current(self) -> Sequence[DraftSource]:
        return self._sources

    def problem(self) -> str:
        return ""

    def close(self) -> None:
        pass


class AddressSource:
    """A draft at an address."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        timeout: float,
        keys: Keys | None = None,
        clock: Callable[[], float] = time.monotonic,
        open_socket: Callable[[str, Keys | None], EngineSocket] = ZmqEngineSocket,
    ) -> None:
        self._address, self._hello, self._timeout, self._keys = address, hello, timeout, keys
        self._clock, self._open_socket = clock, open_socket

    @property
    def name(self) -> str:
        return self._address

    def connect(self) -> Connection | None:
        link = self._open_socket(self._address, self._keys)
        return Connection(link, self._hello, self._clock, timeout=self._timeout, hello_timeout=self._timeout)

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


class RunningThread(Protocol):
    def is_alive(self) -> bool: ...


def _start_thread(run: Callable[[], None]) -> RunningThread:
    thread = threading.Thread(target=run, name="ssd-draft-names", daemon=True)
    thread.start()
    return thread


class NamedSources:
    """All addresses of a DNS name, such as a headless service with one address for each draft.

    A thread looks the name up every few seconds, since that may take long. A failed lookup changes nothing;
    an address that is missing from answers is kept for a minute. A draft that has ended is noticed much
    sooner by its connection.
    """

    def __init__(
        self,
        name: str,
        port: int,
        source_at: Callable[[str], DraftSource],
        *,
        look_up: "Callable[[str], Sequence[str]] | None" = None,
        clock: Callable[[], float] = time.monotonic,
        start_thread: "Callable[[Callable[[], None]], RunningThread] | None" = None,
    ) -> None:
        self._name, self._port, self._source_at, self._clock = name, port, source_at, clock
        self._look_up, self._start_thread = look_up or _look_up, start_thread or _start_thread
        self._sources: dict[str, DraftSource] = {}
        self._named_at: dict[str, float] = {}
        """When an answer last contained each address."""
        self._asking: RunningThread | None = None
        self._ask_at = 0.0
        self._problem = ""

    def current(self) -> Sequence[DraftSource]:
        is_asking = self._asking is not None and self._asking.is_alive()
        if not is_asking and self._clock() >= self._ask_at:
            self._ask_at = self._clock() + _ASK_SECONDS
            self._asking = self._start_thread(self._ask)
        return list(self._sources.values())

    def problem(self) -> str:
        return "" if self._sources else self._problem

    def close(self) -> None:
        self._ask_at = float("inf")

    def _ask(self) -> None:
        try:
            hosts = self._look_up(self._name)
        except OSError as error:
            if not self._problem:
                logger.warning("cannot look up %s: %s", self._name, error)
            self._problem = f"cannot look up {self._name}: {error}"
            return
        self._problem = ""
        now = self._clock()
        named_at = self._named_at | {f"tcp://{host}:{self._port}": now for host in hosts}
        self._named_at = {each: at for each, at in named_at.items() if now - at < _STAY_SECONDS}
        self._sources = {each: self._sources.get(each) or self._source_at(each) for each in self._named_at}


def _look_up(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


def sources_at(addresses: str, hello: Hello, *, timeout: float, keys: Keys | None = None) -> Sources:
    """Drafts at comma-separated addresses, or at all addresses of dns://name:port."""

    def source_at(address: str) -> DraftSource:
        return AddressSource(address, hello, timeout=timeout, keys=keys)

    if not addresses.startswith(_BY_NAME):
        return FixedSources(*(source_at(each.strip()) for each in addresses.split(",")))
    name, _, port = addresses.removeprefix(_BY_NAME).rpartition(":")
    if not name or not port.isdecimal():
        raise ValueError(f"{addresses!r} is no name of drafts: use dns://name:port")
    check_address(f"tcp://{name}:{port}", keys)
    return NamedSources(name, int(port), source_at)


def draft_command(arguments: Sequence[str], address: str) -> list[str]:
    """`ssd draft` with `arguments`, on a private address; it ends when this process does."""
    return [sys.executable, "-m", "ssd", "draft", *arguments, "--listen", address, "--lifeline"]


class ChildSource:
    """A draft as a child process."""

    def __init__(
        self,
        arguments: Sequence[str],
        hello: Hello,
        *,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arguments` are those of `ssd draft`, without --listen."""
        self._arguments = list(arguments)
        self._hello, self._timeout, self._clock = hello, timeout, clock
        self._address = ""
        self._child: Child | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def name(self) -> str:
        return "a child"

    def connect(self) -> Connection | None:
        if self._child is None:
            self._address = private_address()
            command = draft_command(self._arguments, self._address)
            self._child = Child(command, name="a draft", tells_ready=True, clock=self._clock)
        if not self._child.start():
            return None
        link = ZmqEngineSocket(self._address)
        self._connection = Connection(
            link, self._hello, self._clock, timeout=self._timeout, hello_timeout=START_SECONDS
        )
        return self._connection

    def is_broken(self) -> str:
        if self._child is None or self._connection is None:
            return ""
        if self._connection.state is ConnectionState.READY:
            self._child.note_ready()
        if self._child.exit_code is None:
            return ""
        still_loading = self._connection.state is ConnectionState.CONNECTING
        return f"the draft{', while loading,' if still_loading else ''} {self._child.ending}"

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            remove_socket(self._address)
            self._child = None
