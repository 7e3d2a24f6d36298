"""A client that floods a draft: frames of all kinds, many sequences, parts of messages, as fast as it may."""

import random
from contextlib import suppress

from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    Open,
    Resync,
    Sampling,
    pack_ints,
)
from ssd.draft.protocol.sockets import SocketError
from tests.draft.protocol.frames import spoiled
from tests.pool.links import EngineEnd, Network
from tests.pool.texts import VOCAB
from tests.pool.world import Process

KEY = "hostile"
_EVERY = 0.02
_AT_ONCE = 40
"""Frames."""


class Nonsense:
    """Messages of all kinds about many sequences, of which hardly any make sense."""

    def __init__(self, chance: random.Random, hello: Hello) -> None:
        self.hello = hello
        self._random, self._epoch = chance, 0

    def messages(self) -> list[AnyMessage]:
        chance = self._random
        seq = chance.randrange(40)
        self._epoch += 1
        match chance.randrange(6):
            case 0 | 1:
                text = pack_ints([chance.randrange(VOCAB) for _ in range(chance.randint(1, 200))])
                return [Open(seq, self._epoch, text, 1, 500, chance.randint(1, 8), Sampling(seed=seq))]
            case 2:
                return [AskOpen(seq, self._epoch, chance.randint(1, 600)) for seq in range(10)]
            case 3:
                return [Close(seq, self._epoch)]
            case 4:
                return [Resync(each, self._epoch - 1) for each in range(10)]
            case _:
                return [self.hello]


class Hostile:
    def __init__(self, network: Network, chance: random.Random, address: str, seconds: float) -> None:
        world = network.world
        self._random, self._ends = chance, world.now + seconds
        self._process = Process(world, f"hostile {chance.randrange(10**6)}")
        self._socket = EngineEnd(network, self._process, address, KEY, is_hostile=True)
        hello = Hello(PROTOCOL_VERSION, "a rule", VOCAB, "hostile", self._process.name, 0)
        self._nonsense = Nonsense(chance, hello)
        self._send([hello])
        self._process.after(_EVERY, self._flood)

    def _flood(self) -> None:
        process = self._process
        if process.world.now >= self._ends:
            process.end()
            self._socket.close()
            return
        for _ in range(self._random.randint(1, _AT_ONCE)):
            self._send(self._nonsense.messages(), is_spoiled=self._random.random() < 0.05)
        try:
            while self._random.random() < 0.9 and self._socket.receive(0.0) is not None:
                pass
        except SocketError:
            self._ends = process.world.now
        process.after(_EVERY, self._flood)

    def _send(self, messages: list[AnyMessage], *, is_spoiled: bool = False) -> None:
        frame = encode(messages)
        # A draft that does not read as fast is right.
        with suppress(SocketError):
            self._socket.send(spoiled(frame, self._random) if is_spoiled else frame)
