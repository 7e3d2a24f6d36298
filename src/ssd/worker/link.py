"""Links between a server and its engine process: one-way sockets in a private folder.

Knows addresses and bytes; does not know messages. A ZeroMQ socket belongs to one thread: each thread
that speaks gets its own end of `events`, and each that is spoken to a link of its own.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.asyncio

from ssd.processes.sockets import address_in, private_folder, remove_folder

_QUEUED_FRAMES = 1000
"""Then whoever sends waits: a server that does not read holds the engine up instead of filling memory."""


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


class ServerLink:
    """The server's end of all three, on its event loop. It was there first: engines connect to it."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.asyncio.Context()
        plain = zmq.Context(self._context)
        self._commands = plain.socket(zmq.PUSH)
        self._commands.sndhwm = 0  # What is under way is bounded by whoever admits requests.
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
        # Without a limit on its queue the socket makes nobody wait. It is full only where no engine has come
        # yet, or none is left: then its end, which answers everyone, is near.
        with suppress(zmq.ZMQError):
            socket.send(frame, zmq.NOBLOCK)


class WorkerLink:
    """The engine thread's end."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.connect(addresses.commands)
        self._events = EventLink(addresses, self._context)

    def send(self, frame: bytes) -> None:
        self._events.send(frame)

    def receive(self, timeout: float) -> bytes | None:
        """The next frame of commands; None if none comes within so many seconds."""
        if not self._commands.poll(int(timeout * 1000)):
            return None
        return self._commands.recv(zmq.NOBLOCK)

    def close(self) -> None:
        """Last words still go out, as long as someone takes them."""
        self._commands.close(linger=0)
        self._events.close()
        self._context.term()


class GrammarLink:
    """The end of the thread that compiles grammars."""

    def __init__(self, addresses: Addresses) -> None:
        self._socket = zmq.Context().socket(zmq.PULL)
        self._socket.connect(addresses.grammars)

    def receive(self) -> bytes:
        """The next frame, however long it takes to come."""
        return self._socket.recv()


class EventLink:
    """One thread's end of `events`."""

    def __init__(self, addresses: Addresses, context: "zmq.Context[zmq.Socket[bytes]] | None" = None) -> None:
        self._socket = (context or zmq.Context()).socket(zmq.PUSH)
        self._socket.sndhwm = _QUEUED_FRAMES
        self._socket.connect(addresses.events)

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def try_send(self, frame: bytes) -> None:
        """Drops the frame where nobody reads: the next one says the same, only later."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        self._socket.close(linger=1000)
