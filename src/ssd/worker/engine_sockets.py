"""Sockets between a server and its engine process: one-way, in a private folder.

Knows addresses and bytes; does not know messages. A ZeroMQ socket belongs to one thread: each thread that
sends events has its own socket for `events`, and each thread that receives has an address of its own.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.asyncio

from ssd.processes.sockets import address_in, private_folder, remove_folder

_QUEUED_FRAMES = 1000
"""A full queue blocks the sender: a server that does not read stops the engine instead of filling memory."""


@dataclass(frozen=True, slots=True)
class Addresses:
    folder: Path

    @classmethod
    def private(cls) -> "Addresses":
        """In a new folder that only this user can enter."""
        return cls(private_folder())

    @property
    def commands(self) -> str:
        return address_in(self.folder, "commands")

    @property
    def grammars(self) -> str:
        return address_in(self.folder, "grammars")

    @property
    def events(self) -> str:
        return address_in(self.folder, "events")

    def remove(self) -> None:
        remove_folder(self.folder)


class ServerSocket:
    """The server's end of all three addresses, on its event loop. It binds; the engine process connects."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.asyncio.Context()
        plain = zmq.Context(self._context)
        self._commands = plain.socket(zmq.PUSH)
        self._commands.sndhwm = 0  # Unlimited: the server limits the number of requests.
        self._commands.bind(addresses.commands)
        self._grammars = plain.socket(zmq.PUSH)
        self._grammars.bind(addresses.grammars)
        self._events = self._context.socket(zmq.PULL)
        self._events.bind(addresses.events)

    def send(self, frame: bytes) -> None:
        """A frame of commands."""
        self._send(frame, self._commands)

    def send_grammars(self, frame: bytes) -> None:
        self._send(frame, self._grammars)

    async def receive(self) -> bytes:
        """The next frame of events."""
        return await self._events.recv()

    def close(self) -> None:
        self._commands.close(linger=0)
        self._grammars.close(linger=0)
        self._context.destroy(linger=0)

    def _send(self, frame: bytes, socket: "zmq.Socket[bytes]") -> None:
        # The queue is unlimited, so sending never blocks. It fails only while no engine is connected; then
        # the engine's end is about to be noticed, and all callers get an error.
        with suppress(zmq.ZMQError):
            socket.send(frame, zmq.NOBLOCK)


class WorkerSocket:
    """The engine thread's end."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.connect(addresses.commands)
        self._events = EventSocket(addresses, self._context)

    def send(self, frame: bytes) -> None:
        self._events.send(frame)

    def receive(self, timeout: float) -> bytes | None:
        """The next frame of commands; None if none arrives within `timeout` seconds."""
        if not self._commands.poll(int(timeout * 1000)):
            return None
        return self._commands.recv(zmq.NOBLOCK)

    def close(self) -> None:
        """Delivers events that are queued, if the server reads them within a second."""
        self._commands.close(linger=0)
        self._events.close()
        self._context.term()


class GrammarSocket:
    """The receiving end of `grammars`, for the compile queue's thread."""

    def __init__(self, addresses: Addresses) -> None:
        self._socket = zmq.Context().socket(zmq.PULL)
        self._socket.connect(addresses.grammars)

    def receive(self) -> bytes:
        """The next frame; blocks until it arrives."""
        return self._socket.recv()


class EventSocket:
    """One thread's sending end of `events`."""

    def __init__(self, addresses: Addresses, context: "zmq.Context[zmq.Socket[bytes]] | None" = None) -> None:
        self._socket = (context or zmq.Context()).socket(zmq.PUSH)
        self._socket.sndhwm = _QUEUED_FRAMES
        self._socket.connect(addresses.events)

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def try_send(self, frame: bytes) -> None:
        """Drops the frame if the queue is full: for heartbeats, where a later one replaces it."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        self._socket.close(linger=1000)
