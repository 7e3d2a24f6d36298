"""What a peer says that lies, or whose frames get lost: changes of frames on their way.

Frames are lost one by one only here: TCP loses whole connections. Knows the messages, not who sends them.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np

from ssd.draft.protocol.codec import FrameError, decode, encode
from ssd.draft.protocol.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    AskOpen,
    Close,
    Hello,
    Nodes,
    NodesHeads,
    OfferOpen,
    Open,
    Outcome,
    OutcomeHeads,
    Resync,
    Stats,
    pack_ints,
    unpack_ints,
)
from tests.draft.protocol.frames import spoiled
from tests.pool.texts import VOCAB

_KEPT = 20
"""Frames that may be said again."""
Lie = Callable[[random.Random, bytes], Sequence[bytes]]


def _each(frame: bytes, change: Callable[[AnyMessage], AnyMessage]) -> list[bytes]:
    try:
        messages = decode(frame, vocab_size=VOCAB)
    except FrameError:
        return [frame]
    return [encode([change(each) for each in messages])]


def wrong_tokens(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    def change(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Nodes) and message.nodes:
            columns = message.node_columns().copy()
            columns[2] = (columns[2] + 1 + chance.randrange(5)) % VOCAB
            return msgspec.structs.replace(message, nodes=columns.tobytes())
        if isinstance(message, Outcome):
            tokens = unpack_ints(message.tokens).copy()
            tokens[chance.randrange(len(tokens))] = chance.choice((0, 5, VOCAB - 1, VOCAB, 2**31 - 1))
            return msgspec.structs.replace(message, tokens=tokens.tobytes())
        if isinstance(message, Open):
            return msgspec.structs.replace(message, tokens=pack_ints([chance.randrange(VOCAB + 1)]))
        return message

    return _each(frame, change)


def wrong_ids(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    def change(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Nodes) and message.nodes:
            columns = message.node_columns().copy()
            row = chance.randrange(2)
            place = chance.randrange(columns.shape[1])
            columns[row, place:] += chance.choice((-4, -1, 1, 4, 4096))
            return msgspec.structs.replace(message, nodes=columns.tobytes())
        if isinstance(message, Open):
            return msgspec.structs.replace(message, seq=chance.randrange(6))
        if isinstance(message, Resync | Close):
            return msgspec.structs.replace(message, seq=chance.randrange(6), epoch=message.epoch + 1)
        return message

    return _each(frame, change)


def wrong_numbers(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    def change(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Nodes | Outcome):
            kind = NodesHeads if isinstance(message, Nodes) else OutcomeHeads
            columns = np.array(message.columns())
            # Of NODES not how many nodes there are, of OUTCOME not how many tokens: such frames are garbage.
            row = chance.choice(
                [place for place, name in enumerate(kind._fields) if not name.startswith("num_")]
            )
            place = chance.randrange(columns.shape[1])
            columns[row, place] = max(0, columns[row, place] + chance.choice((-2, -1, 1, 2, 1000)))
            return msgspec.structs.replace(message, heads=columns.astype("<i8").tobytes())
        if isinstance(message, Stats):
            lies: list[dict[str, object]] = [
                {"num_sequences": chance.choice((0, 1, 10**6))},
                {"kv_usage": chance.choice((0.0, 0.69, 1.0))},
                {"num_steps": chance.choice((0, 2**53)), "seconds": chance.choice((0.0, 1e9))},
                {"tenant": f"tenant {chance.randrange(100)}"},
                {"num_own_rows": chance.choice((0, 2**53))},
                {"free_sequences": chance.choice((0, 10**6)), "free_tokens": chance.choice((0, 10**9))},
                {"drains": True},
            ]
            return msgspec.structs.replace(message, **chance.choice(lies))
        return message

    return _each(frame, change)


def garbage(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    return [chance.choice((spoiled(frame, chance), chance.randbytes(chance.randrange(60)), b""))]


def requests(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    """Asks for texts, trees or room, or offers room, with epochs that can be foreseen."""
    kind = chance.choice((Resync, OfferOpen, partial(AskOpen, num_tokens=chance.choice((1, 300, 2**31 - 1)))))
    asked = [kind(seq, epoch) for seq in range(6) for epoch in range(1, 1 + chance.randrange(60))]
    return [frame, encode(asked)]


def closings(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    ends = [
        Close(seq, epoch, "a lie", may_return=chance.random() < 0.5)
        for seq in range(3)
        for epoch in range(1, 1 + chance.randrange(60))
    ]
    return [frame, encode(ends)]


def greetings(chance: random.Random, frame: bytes) -> Sequence[bytes]:
    size = chance.choice((VOCAB, 3, 2**31 - 1))
    return [frame, encode([Hello(PROTOCOL_VERSION, "a rule", size, "a liar", "x", chance.choice((0, 7)))])]


def lost(_chance: random.Random, _frame: bytes) -> Sequence[bytes]:
    return []


def said_twice(_chance: random.Random, frame: bytes) -> Sequence[bytes]:
    return [frame, frame]


LIES: dict[str, Lie] = {
    each.__name__.replace("_", " "): each
    for each in (
        wrong_tokens,
        wrong_ids,
        wrong_numbers,
        garbage,
        requests,
        closings,
        greetings,
        lost,
        said_twice,
    )
}


@dataclass(slots=True)
class Liar:
    """Changes some of the frames that pass."""

    chance: random.Random
    kinds: Sequence[str]
    share: float
    """Of the frames."""
    note: Callable[[str], object]
    """Is told the kind of each lie."""
    is_over: bool = False
    """It tells the truth from now on."""
    _old: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def __call__(self, frame: bytes) -> Sequence[bytes]:
        self._old.append(frame)
        if self.is_over or self.chance.random() >= self.share:
            return [frame]
        kind = self.chance.choice(self.kinds)
        self.note(kind)
        if kind == "old frame":
            return [frame, self.chance.choice(self._old)]
        return LIES[kind](self.chance, frame)
