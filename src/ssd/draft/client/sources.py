"""Finds drafts: addresses, DNS names, child processes.

One address is a list of one. Knows child processes, names and connections. Only `close` blocks.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ssd.draft.client.connection import Connection, ConnectionState
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import EngineSocket, Keys, ZmqEngineSocket, check_address
from ssd.processes.child import Child
from ssd.processes.sockets import private_address, remove_socket

logger = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
"""Time between two DNS lookups."""
_STAY_SECONDS = 60.0
"""How long an address is kept that answers no longer contain: a name server may return a subset each time."""
_BY_NAME = "dns://"
START_SECONDS = 600.0
"""A large draft may take minutes to load; a process that ends is noticed at once."""


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
