"""The sockets between a server and its engine process: one-way lines in a private folder.

Knows addresses and bytes; does not know messages. A ZeroMQ socket belongs to one thread: each thread
that speaks gets its own end of `events`, and each that is spoken to a line of its own.
"""

from dataclasses import dataclass
from pathlib import Path

import zmq

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


class WorkerLink:
    """The engine thread's end."""

    def __init__(self, addresses: Addresses) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.connect(addresses.commands)
        self._events = EventSender(addresses, self._context)

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


class GrammarLine:
    """The end of the thread that compiles grammars."""

    def __init__(self, addresses: Addresses) -> None:
        self._socket = zmq.Context().socket(zmq.PULL)
        self._socket.connect(addresses.grammars)

    def receive(self) -> bytes:
        """The next frame, however long it takes to come."""
        return self._socket.recv()


class EventSender:
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
