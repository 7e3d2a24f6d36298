"""A line to a draft that drops, repeats, delays, reorders, corrupts and replays frames, as a seed says.

The fault strikes frames that carry a chosen kind of message, in either direction.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import AnyMessage, Nodes
from ssd.draft.protocol.sockets import EngineSocket

WireFault = Literal["drop", "duplicate", "delay", "reorder", "corrupt", "replay", "lie"]
WIRE_FAULTS: tuple[WireFault, ...] = get_args(WireFault)
KINDS = ("hello", "open", "outcome", "nodes", "resync", "close", "stats")


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes wrong: one fault, on frames with one kind of message, with a chance each time."""

    fault: WireFault
    kind: str
    chance: float
    seed: int


def kinds_in(frame: bytes) -> set[str]:
    try:
        return {message["type"] for message in msgspec.msgpack.decode(frame)}
    except (msgspec.DecodeError, TypeError, IndexError):
        return set()


class Mangler:
    """One direction of a line. Frames go in; none, one or several come out, now or later."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._held: list[tuple[int, bytes]] = []
        """Frames under way, and after how many further frames they arrive."""
        self._old: list[bytes] = []
        self.num_struck = 0

    def mend(self) -> None:
        self._plan = replace(self._plan, chance=0.0)

    def feed(self, frame: bytes) -> list[bytes]:
        self._held = [(left - 1, held) for left, held in self._held]
        due = [held for left, held in self._held if left <= 0]
        self._held = [(left, held) for left, held in self._held if left > 0]
        strikes = self._plan.kind in kinds_in(frame) and self._random.random() < self._plan.chance
        self._old = [*self._old[-20:], frame]
        if not strikes:
            return [frame, *due]
        self.num_struck += 1
        return [*self._strike(frame), *due]

    def _strike(self, frame: bytes) -> list[bytes]:
        match self._plan.fault:
            case "drop":
                return []
            case "duplicate":
                return [frame, frame]
            case "delay":
                self._held.append((self._random.randint(2, 6), frame))
                return []
            case "reorder":
                self._held.append((1, frame))
                return []
            case "corrupt":
                return [self._corrupted(frame)]
            case "replay":
                return [frame, self._random.choice(self._old)]
            case "lie":
                return [self._lying(frame)]

    def _corrupted(self, frame: bytes) -> bytes:
        spoilt = bytearray(frame)
        for _ in range(self._random.randint(1, 4)):
            spoilt[self._random.randrange(len(spoilt))] ^= 1 << self._random.randrange(8)
        return bytes(spoilt[: self._random.randint(len(spoilt) // 2, len(spoilt))])

    def _lying(self, frame: bytes) -> bytes:
        """Valid frames with other tokens than the draft meant."""
        messages = msgspec.msgpack.decode(frame, type=list[AnyMessage])
        return encode([self._lie(each) if isinstance(each, Nodes) else each for each in messages])

    def _lie(self, nodes: Nodes) -> Nodes:
        columns = nodes.node_columns().copy()
        columns[-1] = (columns[-1] + 1 + self._random.randrange(5)) % 400
        return msgspec.structs.replace(nodes, nodes=columns.tobytes())


class FaultyLink:
    """An engine's link with a fault in both directions."""

    def __init__(self, link: EngineSocket, plan: Plan) -> None:
        self._link = link
        self._out, self._in = Mangler(plan), Mangler(plan)
        self._arrived: list[bytes] = []

    @property
    def num_struck(self) -> int:
        return self._out.num_struck + self._in.num_struck

    def send(self, frame: bytes) -> None:
        for each in self._out.feed(frame):
            self._link.send(each)

    def mend(self) -> None:
        """Strikes no more."""
        self._out.mend()
        self._in.mend()

    def overfull(self) -> str:
        return ""

    def receive(self, timeout: float) -> bytes | None:
        if not self._arrived:
            frame = self._link.receive(timeout)
            if frame is not None:
                self._arrived.extend(self._in.feed(frame))
        return self._arrived.pop(0) if self._arrived else None

    def close(self) -> None:
        self._link.close()
