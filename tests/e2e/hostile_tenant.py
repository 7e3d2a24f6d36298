"""The holder of a key that means harm: floods drafts and lies to them, over real sockets.

    python -m tests.e2e.hostile_tenant tcp://127.0.0.1:7000,tcp://127.0.0.1:7001 --keys FOLDER

Two peers connect to each draft with this key, and each sends `--frames` frames a second. `Greedy` opens
sequences without end and reports random tokens for them: it wants more rows than there are. The other peer
sends messages of all kinds (`Nonsense`, tests/pool/hostile.py), half of them changed by a lie
(tests/pool/lies.py). Both connect again when a draft ends, hangs up or forgets them. Once a second the
program says what it has sent.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.flags import parser
from ssd.draft.protocol.codec import FrameError, decode, encode
from ssd.draft.protocol.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Hello,
    Open,
    Sampling,
    pack_ints,
)
from ssd.draft.protocol.sockets import Keys, SocketError, ZmqEngineSocket
from tests.draft.protocol.frames import outcomes
from tests.network.programs import say
from tests.pool.hostile import Nonsense
from tests.pool.lies import LIES, Liar
from tests.pool.texts import VOCAB

FLAGS: dict[str, object] = {"addresses:": str, "keys": None, "frames": 100.0, "seed": 0}
_TICK = 0.02
_SAYS_EVERY = 1.0
_SEQUENCES = 40
_MOST_TOKENS = 200
"""Of a text that is opened."""
_UNREAD_AT_ONCE = 100
"""Frames of a draft that are read in a tick; the rest waits, as with a target that is slow."""
_LIES_TOLD = tuple(name for name in LIES if name != "lost")


class Talk(Protocol):
    hello: Hello

    def messages(self) -> list[AnyMessage]: ...


class Greedy:
    """Many sequences, each with outcomes that nobody can foresee, and now and then another text."""

    def __init__(self, chance: random.Random, hello: Hello) -> None:
        self.hello = hello
        self._random, self._epoch = chance, 0
        self._said: dict[int, tuple[int, int]] = {}
        """Of each sequence: its epoch, and outcomes."""

    def messages(self) -> list[AnyMessage]:
        seq = self._random.randrange(_SEQUENCES)
        epoch, n = self._said.get(seq, (0, 0))
        if epoch and self._random.random() < 0.8:
            self._said[seq] = epoch, n + 1
            tokens = self._tokens(4)
            # It claims to have received all frames, so that the draft always may send more.
            return [outcomes((seq, epoch, n + 1, 2**31 - 1, len(tokens)), tokens=tokens)]
        self._epoch += 1
        self._said[seq] = self._epoch, 0
        text = pack_ints(self._tokens(_MOST_TOKENS))
        return [Open(seq, self._epoch, text, 1, 500, 8, Sampling(seed=seq))]

    def _tokens(self, most: int) -> list[int]:
        return [self._random.randrange(VOCAB) for _ in range(self._random.randint(1, most))]


class Peer:
    """A connection to one draft, made anew as often as it ends."""

    def __init__(
        self, address: str, keys: Keys, talk: Talk, change: Callable[[bytes], Sequence[bytes]]
    ) -> None:
        self._address, self._keys, self._talk, self._change = address, keys, talk, change
        self.num_sent = self.num_heard = self.num_connects = 0
        self._connect()

    def flood(self, count: int) -> None:
        try:
            for _ in range(count):
                for frame in self._change(encode(self._talk.messages())):
                    self._send(frame)
            for _ in range(_UNREAD_AT_ONCE):
                heard = self._socket.receive(0.0)
                if heard is None:
                    break
                self._take(heard)
            if self._socket.overfull():
                self._connect_anew()
        except SocketError:
            self._connect_anew()

    def close(self) -> None:
        self._socket.close()

    def _connect_anew(self) -> None:
        self.close()
        self._connect()

    def _connect(self) -> None:
        self._socket = ZmqEngineSocket(self._address, self._keys)
        self.num_connects += 1
        self._greet()

    def _greet(self) -> None:
        self._is_greeting = True
        self._send(encode([self._talk.hello]))

    def _send(self, frame: bytes) -> None:
        # A draft that does not read as fast is right.
        with suppress(SocketError):
            self._socket.send(frame)
            self.num_sent += 1

    def _take(self, frame: bytes) -> None:
        """A draft's HELLO names its tokenizer: who holds a key need not know it before."""
        self.num_heard += 1
        with suppress(FrameError):
            for message in decode(frame, vocab_size=self._talk.hello.vocab_size):
                if isinstance(message, Hello):
                    known = self._talk.hello
                    self._talk.hello = msgspec.structs.replace(
                        known, tokenizer=message.tokenizer, vocab_size=message.vocab_size
                    )
                    if message.refusal or not self._is_greeting:
                        self._greet()
                    else:
                        self._is_greeting = False


def peers_of(address: str, keys: Keys, seed: int, lies: Counter[str]) -> list[Peer]:
    chance = random.Random(f"{address} {seed}")
    hello = Hello(PROTOCOL_VERSION, "not known yet", VOCAB, "hostile", f"{address} {seed}", 0)
    liar = Liar(chance, _LIES_TOLD, 0.5, lambda kind: lies.update([kind]))
    return [
        Peer(address, keys, Greedy(chance, hello), lambda frame: [frame]),
        Peer(address, keys, Nonsense(chance, hello), liar),
    ]


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    keys, lies = Keys(Path(options.keys)), Counter[str]()
    addresses = options.addresses.split(",")
    peers = [each for address in addresses for each in peers_of(address, keys, options.seed, lies)]
    began = says_at = time.monotonic()
    num_due = 0
    while True:
        before, num_due = num_due, int(options.frames * (time.monotonic() - began))
        for peer in peers:
            peer.flood(num_due - before)
        if time.monotonic() >= says_at:
            says_at = time.monotonic() + _SAYS_EVERY
            counts = {name: sum(getattr(each, f"num_{name}") for each in peers) for name in _COUNTS}
            say({**counts, "lies": dict(lies)})
        time.sleep(_TICK)


_COUNTS = ("sent", "heard", "connects")


if __name__ == "__main__":
    main()
