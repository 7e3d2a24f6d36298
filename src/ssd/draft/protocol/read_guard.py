"""Bytes that a connection has brought and nobody has read yet: counted, and too many end the connection.

ZeroMQ bounds a message's size and the number of messages that wait, but neither for the parts of one message:
a message of many parts is held, however large, until its last part has come. So the kernel is asked how many
bytes a TCP connection has brought, those that were handed on are counted, and a connection that keeps more
than it may is shut. Knows descriptors and numbers; no frames. Of Unix sockets the kernel counts nothing: only
the same user can connect to them.
"""

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import recv_monitor_message

logger = logging.getLogger(__name__)

_RECEIVED_AT = 128
"""Where Linux has tcpi_bytes_received in struct tcp_info."""
_BYTES_OF_MESSAGE = 48
"""What encryption and framing add to each message, and a little more."""
_BYTES_A_SECOND = 128
"""Of signs of life, which are never handed on."""
_TICK_SECONDS = 0.02
"""Between two looks at all connections. A look takes 3 µs, so 100 connections take 1.5 % of a core."""


def bytes_received(descriptor: int) -> int | None:
    """That a TCP connection has brought so far; None: it is none, or the kernel does not say."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except (OSError, AttributeError):
        return None
    finally:
        connection.detach()  # ZeroMQ owns the descriptor and closes it.
    if len(info) < _RECEIVED_AT + 8:
        return None
    return int(struct.unpack_from("Q", info, _RECEIVED_AT)[0])


def shut(descriptor: int) -> None:
    """Ends a connection that ZeroMQ owns; it notices, and frees what the connection had brought."""
    with suppress(OSError), closing(socket.socket(fileno=os.dup(descriptor))) as connection:
        connection.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class Read:
    """What was handed on of a connection."""

    peer: bytes = b""
    num_bytes: int = 0

    def note(self, size: int) -> None:
        self.num_bytes += size + _BYTES_OF_MESSAGE


@dataclass(slots=True)
class Backlog:
    """What a connection has brought beyond what was handed on."""

    descriptor: int
    since: float
    stale: Read | None = None
    """Of the connection that had the descriptor before."""
    last: Read | None = field(default=None)
    _spare: int = 0
    """By how much more was allowed for than came: that is no credit."""

    def unread(self, read: Read | None, now: float) -> int:
        received = bytes_received(self.descriptor)
        if received is None:
            return 0
        self.last = None if read is self.stale else read
        handed_on = 0 if self.last is None else self.last.num_bytes
        left = received - handed_on - int(_BYTES_A_SECOND * (now - self.since)) + self._spare
        self._spare -= min(left, 0)
        return max(left, 0)


class ReadGuard:
    """A thread beside a socket that many connect to."""

    def __init__(
        self, monitored: "zmq.Socket[bytes]", most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`most` bytes of one connection may wait, and of all together four times as many."""
        self._most, self._clock = most, clock
        self._read: dict[int, Read] = {}
        self._backlogs: dict[int, Backlog] = {}
        self._before: dict[int, Read | None] = {}
        """Of descriptors that are free, or have been since: what was handed on of their last connection."""
        self._is_over = threading.Event()
        self._monitored = monitored
        self._events = monitored.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._thread = threading.Thread(target=self._watch, name="ssd-draft-unread", daemon=True)
        self._thread.start()

    def note(self, descriptor: int, peer: bytes, size: int) -> None:
        """A message was handed on. Called by the thread that reads."""
        read = self._read.get(descriptor)
        if read is None or read.peer != peer:
            read = self._read[descriptor] = Read(peer)
        read.note(size)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._monitored.disable_monitor()

    def _watch(self) -> None:
        due = self._clock()
        while not self._is_over.is_set():
            while self._events.poll(0):
                self._note_event()
            if self._clock() >= due:
                self._check()
                due = self._clock() + _TICK_SECONDS
            self._events.poll(int(_TICK_SECONDS * 1000))

    def _note_event(self) -> None:
        event = recv_monitor_message(self._events)
        descriptor = int(event["value"])
        before = self._backlogs.pop(descriptor, None)
        if before is not None:
            self._before[descriptor] = before.last
        if event["event"] == zmq.EVENT_ACCEPTED:
            self._backlogs[descriptor] = Backlog(descriptor, self._clock(), self._before.get(descriptor))

    def _check(self) -> None:
        now = self._clock()
        unread = {
            descriptor: backlog.unread(self._read.get(descriptor), now)
            for descriptor, backlog in list(self._backlogs.items())
        }
        too_many = [descriptor for descriptor, count in unread.items() if count > self._most]
        if not too_many and sum(unread.values()) > 4 * self._most:
            too_many = [max(unread, key=unread.__getitem__)]
        for descriptor in too_many:
            logger.warning("an engine is cut off: %d bytes of it wait unread", unread[descriptor])
            shut(descriptor)
