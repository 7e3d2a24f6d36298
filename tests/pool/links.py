"""The network between targets and drafts, and the two kinds of sockets at its ends.

A line is one connection, as ZeroMQ over TCP makes it: frames of a direction arrive in their order, each after
its delay; those of different lines overtake each other. While a way is cut, frames wait, and are sent again
once it is whole. If one side hears nothing for too long (ZeroMQ's heartbeats) it ends the line. Queues are
bounded as in protocol/sockets.py: a target whose frames are not read gets an error, a draft's frame to a
target that does not read is dropped. `Way.changes` stand for a side that lies, or loses frames.

Knows frames and addresses; of their content only how many messages there are.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ssd.draft.protocol.sockets import MOST_UNREAD, Heard, Keys, SocketError
from tests.pool.world import Process, World

Change = Callable[[bytes], Sequence[bytes]]
"""What goes on instead of a frame."""
QUEUED_BY_TARGET, QUEUED_BY_DRAFT = 1008, 1256
"""Frames that are neither read nor refused: those that protocol/sockets.py lets wait at both ends."""
_DRAFT_HEARS, _TARGET_HEARS = 5.0, 20.0
"""Seconds without a sign of life after which ZeroMQ ends a connection: a draft's side, a target's side."""
_RESEND_SECONDS = 0.2
_FRAME_SECONDS, _BYTE_SECONDS = 30e-6, 1e-9
"""What a draft's host takes to receive or send a frame."""
_BYTES_PER_SECOND = 1e9


def num_messages(frame: bytes) -> int:
    """By the head of its msgpack list; 0 for what is none."""
    if not frame:
        return 0
    if 0x90 <= frame[0] <= 0x9F:
        return frame[0] & 15
    return int.from_bytes(frame[1:3], "big") if frame[0] == 0xDC else 0


class Network:
    def __init__(self, world: World, latency: float) -> None:
        self.world, self.latency = world, latency
        self.jitter = 0.0
        """Most seconds of additional delay, drawn for each frame."""
        self.random = world.random_of("network")
        self.listening: dict[str, DraftEnd] = {}
        """By address."""
        self.lines: list[Line] = []
        self._cuts: dict[tuple[str, str], int] = {}
        """Ways from one host to another that are cut, and how often."""
        self._num_lines = 0
        self.slow: dict[str, float] = {}
        """Additional seconds for all frames to and from a host."""

    def new_number(self) -> int:
        self._num_lines += 1
        return self._num_lines

    def is_cut(self, sender: str, receiver: str) -> bool:
        return self._cuts.get((sender, receiver), 0) > 0

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] = self._cuts.get((sender, receiver), 0) + 1
        for line in self.between(sender, receiver):
            line.note_silence()

    def mend(self, sender: str, receiver: str) -> None:
        self._cuts[sender, receiver] -= 1
        if not self.is_cut(sender, receiver):
            for line in self.between(sender, receiver):
                line.note_sound()

    def between(self, one: str, other: str) -> list["Line"]:
        return [each for each in self.lines if {each.engine.host, each.draft.host} == {one, other}]

    def of(self, host: str) -> list["Line"]:
        return [each for each in self.lines if host in (each.engine.host, each.draft.host)]

    def delay(self, sender: str, receiver: str, size: int) -> float:
        extra = self.slow.get(sender, 0.0) + self.slow.get(receiver, 0.0)
        return self.latency + extra + self.jitter * self.random.random() + size / _BYTES_PER_SECOND


class Way:
    """One direction of a line."""

    def __init__(
        self, network: Network, sender: str, receiver: str, arrive: Callable[[bytes], None], kind: str
    ) -> None:
        """`kind`: under which messages are counted."""
        self._network, self._sender, self._receiver, self._arrive = network, sender, receiver, arrive
        self._kind = kind
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._last = 0.0
        self.num_waiting = 0
        """Frames that were sent and not read."""
        self.changes: list[Change] = []

    def send(self, frame: bytes, after: float) -> None:
        world = self._network.world
        sent: Sequence[bytes] = (frame,)
        for change in list(self.changes):
            sent = [new for each in sent for new in change(each)]
        # A side that is busy sends when that part of its work is done.
        for each in sent:
            delay = after + self._network.delay(self._sender, self._receiver, len(each))
            self._last = max(self._last, world.now + delay)
            self._under_way.append((self._last, each))
            self.num_waiting += 1
            world.at(self._last, self.deliver)

    def deliver(self) -> None:
        """What is due by now; a way that is cut keeps it."""
        world = self._network.world
        if self._network.is_cut(self._sender, self._receiver):
            return
        while self._under_way and self._under_way[0][0] <= world.now:
            _due, frame = self._under_way.popleft()
            count = num_messages(frame)
            world.messages[self._kind] += count
            world.num_bytes += len(frame)
            world.note(frame, count)
            self._arrive(frame)

    def forget(self) -> None:
        self._under_way.clear()


class Line:
    def __init__(self, network: Network, engine: "EngineEnd", draft: "DraftEnd") -> None:
        self._network, self.engine, self.draft = network, engine, draft
        self.number = network.new_number()
        self.peer = self.number.to_bytes(5, "big")
        out, back = ("of floods", "to floods") if engine.is_hostile else ("to drafts", "to targets")
        self.to_draft = Way(network, engine.host, draft.host, self._arrive_at_draft, out)
        self.to_engine = Way(network, draft.host, engine.host, engine.arrive, back)
        self.is_over = False
        self._num_silences = 0
        network.lines.append(self)
        draft.lines[self.peer] = self

    def note_silence(self) -> None:
        """One side hears nothing of the other from now on."""
        self._num_silences += 1
        number, after = self._num_silences, self._network.world.after
        after(_DRAFT_HEARS, lambda: self._end_for_draft(number))
        after(_TARGET_HEARS, lambda: self._end_for_both(number))

    def note_sound(self) -> None:
        self._num_silences += 1
        if self.peer not in self.draft.lines:
            # The draft's side ended it meanwhile, and the target's learns it now.
            self.reset()
        for way in (self.to_draft, self.to_engine):
            self._network.world.after(_RESEND_SECONDS, way.deliver)

    def _end_for_draft(self, number: int) -> None:
        if number == self._num_silences:
            self.draft.lines.pop(self.peer, None)

    def _end_for_both(self, number: int) -> None:
        if number == self._num_silences:
            self.reset()

    def reset(self) -> None:
        """It breaks: frames under way are lost, and both sides learn it."""
        if self.is_over:
            return
        self.is_over = True
        self.to_draft.forget()
        self.to_engine.forget()
        self.draft.lines.pop(self.peer, None)
        self._network.lines.remove(self)
        self.engine.hang_up(self)

    def close(self) -> None:
        """From the target's side. What it said before still arrives."""
        if self.is_over:
            return
        self.is_over = True
        self._network.lines.remove(self)
        network = self._network
        delay = network.delay(self.engine.host, self.draft.host, 0)
        if network.is_cut(self.engine.host, self.draft.host):
            delay = _DRAFT_HEARS
        network.world.after(delay, lambda: self.draft.lines.pop(self.peer, None))

    def _arrive_at_draft(self, frame: bytes) -> None:
        if self.peer in self.draft.lines:
            self.draft.arrive(Heard(self.peer, frame, self.engine.key), self.to_draft)


class EngineEnd:
    """A target's socket: connects by itself, and again until it has heard something."""

    def __init__(
        self,
        network: Network,
        process: Process,
        address: str,
        key: str,
        *,
        written: Callable[[bytes], bytes] = bytes,
        is_hostile: bool = False,
    ) -> None:
        """`written`: a frame as the target's version writes it."""
        self._network, self._process, self._address = network, process, address
        self._written = written
        self.is_hostile = is_hostile
        self.host, self.key = process.name, key
        self._line: Line | None = None
        self._pending = deque[bytes]()
        self._inbox = deque[bytes]()
        self._num_unread = 0
        self._has_heard = self._is_over = self._is_closed = False
        self._retry_seconds = 0.1
        network.world.after(network.latency, self._attempt)

    @property
    def line(self) -> Line | None:
        return self._line

    def _attempt(self) -> None:
        if self._is_closed or self._line is not None or not self._process.is_alive:
            return
        end = self._network.listening.get(self._address)
        if end is None or self._is_unreachable(end.host) or end.process.is_frozen:
            wait = self._retry_seconds * (0.5 + self._network.random.random())
            self._retry_seconds = min(2 * self._retry_seconds, 1.0)
            self._network.world.after(wait, self._attempt)
            return
        self._line = Line(self._network, self, end)
        while self._pending:
            self._line.to_draft.send(self._pending.popleft(), 0.0)

    def _is_unreachable(self, host: str) -> bool:
        return self._network.is_cut(self.host, host) or self._network.is_cut(host, self.host)

    def send(self, frame: bytes) -> None:
        if self._is_over or self._is_closed:
            return  # ZeroMQ takes it; the end is learnt by reading.
        num_waiting = len(self._pending) if self._line is None else self._line.to_draft.num_waiting
        if num_waiting >= QUEUED_BY_TARGET:
            raise SocketError("the draft takes no more frames: Resource temporarily unavailable")
        frame = self._written(frame)
        if self._line is None:
            self._pending.append(frame)
        else:
            self._line.to_draft.send(frame, self._process.busy)

    def arrive(self, frame: bytes) -> None:
        if not self._is_closed:
            self._inbox.append(frame)
            self._num_unread += len(frame)

    def hang_up(self, line: Line) -> None:
        if self._line is not line:
            return
        self._line = None
        if self._has_heard or self._inbox:
            self._is_over = True
        else:
            self._network.world.after(self._retry_seconds, self._attempt)

    def receive(self, timeout: float) -> bytes | None:
        if timeout > 0 and not self._inbox and not self._is_over:
            self._process.wait(timeout, lambda: bool(self._inbox) or self._is_over)
        if not self._inbox:
            if self._is_over:
                raise SocketError("the draft has hung up")
            return None
        frame = self._inbox.popleft()
        self._has_heard = True
        self._num_unread -= len(frame)
        if self._line is not None:
            self._line.to_engine.num_waiting -= 1
        return frame

    def overfull(self) -> str:
        if self._num_unread <= MOST_UNREAD:
            return ""
        if self._line is not None:
            self._line.reset()
        return f"the draft has sent {self._num_unread} bytes that nobody reads"

    def close(self) -> None:
        self._is_closed = True
        self._inbox.clear()
        if self._line is not None:
            self._line.close()
            self._line = None


class DraftEnd:
    """A draft's socket: listens at an address."""

    def __init__(
        self,
        network: Network,
        process: Process,
        address: str,
        wake: Callable[[], None],
        written: Callable[[bytes], bytes],
    ) -> None:
        """`written`: a frame as the draft's version writes it."""
        self._network, self.process, self._address, self._wake = network, process, address, wake
        self._written = written
        self.host = process.name
        self.lines: dict[bytes, Line] = {}
        self._inbox = deque[tuple[Heard, Way]]()
        network.listening[address] = self

    @property
    def num_unread(self) -> int:
        return len(self._inbox)

    def arrive(self, heard: Heard, way: Way) -> None:
        self._inbox.append((heard, way))
        self._wake()

    def send(self, peer: bytes, frame: bytes) -> None:
        line = self.lines.get(peer)
        if line is None:
            raise SocketError("the engine is gone: Host unreachable")
        self.process.work(_FRAME_SECONDS + len(frame) * _BYTE_SECONDS)
        if line.to_engine.num_waiting < QUEUED_BY_DRAFT:
            line.to_engine.send(self._written(frame), self.process.busy)

    def receive(self, timeout: float) -> Heard | None:
        if not self._inbox:
            return None
        heard, way = self._inbox.popleft()
        way.num_waiting -= 1
        self.process.work(_FRAME_SECONDS + len(heard.frame) * _BYTE_SECONDS)
        return heard

    def close(self) -> None:
        """The process ends, and with it all its lines."""
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]
        for line in list(self.lines.values()):
            line.reset()

    def vanish(self) -> None:
        """Its machine dies: nobody is told."""
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]
        for line in list(self.lines.values()):
            line.note_silence()

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self.lines.values()))


def opener(
    network: Network, process: Process, key: str, written: Callable[[bytes], bytes]
) -> Callable[[str, Keys | None], EngineEnd]:
    def open_socket(address: str, _keys: Keys | None) -> EngineEnd:
        return EngineEnd(network, process, address, key, written=written)

    return open_socket
