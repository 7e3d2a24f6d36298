"""A connection to a draft that drops frames, reorders them, or changes tokens, as a seed says."""

import random

import msgspec

from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import AnyMessage, Nodes
from ssd.draft.protocol.sockets import EngineSocket

WIRE_FAULTS = ("drop", "lie", "reorder")


class Mangler:
    """One direction. It strikes frames that carry one kind of message, with a chance each time."""

    def __init__(self, fault: str, kind: str, chance: float, seed: int) -> None:
        self._fault, self._kind, self.chance = fault, kind, chance
        self._random = random.Random(seed)
        self._held: list[bytes] = []
        """A frame that arrives after the next one."""
        self.num_struck = 0

    def feed(self, frame: bytes) -> list[bytes]:
        due, self._held = self._held, []
        kinds = {message["type"] for message in msgspec.msgpack.decode(frame)}
        if self._kind not in kinds or self._random.random() >= self.chance:
            return [frame, *due]
        self.num_struck += 1
        if self._fault == "reorder":
            self._held = [frame]
        return [self._lying(frame), *due] if self._fault == "lie" else due

    def _lying(self, frame: bytes) -> bytes:
        """A valid frame with other tokens than the draft meant."""
        messages = msgspec.msgpack.decode(frame, type=list[AnyMessage])
        return encode([self._lie(each) if isinstance(each, Nodes) else each for each in messages])

    def _lie(self, nodes: Nodes) -> Nodes:
        columns = nodes.node_columns().copy()
        columns[-1] = (columns[-1] + 1 + self._random.randrange(5)) % 400
        return msgspec.structs.replace(nodes, nodes=columns.tobytes())


class FaultyLink:
    """An engine's link with a fault in both directions."""

    def __init__(self, link: EngineSocket, fault: str, kind: str, chance: float, seed: int) -> None:
        self._link = link
        self._out, self._in = (Mangler(fault, kind, chance, seed) for _ in range(2))
        self._arrived: list[bytes] = []

    @property
    def num_struck(self) -> int:
        return self._out.num_struck + self._in.num_struck

    def mend(self) -> None:
        """Strikes no more."""
        self._out.chance = self._in.chance = 0.0

    def send(self, frame: bytes) -> None:
        for each in self._out.feed(frame):
            self._link.send(each)

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
