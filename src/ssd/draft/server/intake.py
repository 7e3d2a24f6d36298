"""Frames that a draft has received and not applied yet, and the peers that sent them.

One peer may send faster than the draft can apply. The next message is therefore from the tenant on which the
least time was spent so far, by its weight, and when a turn's time is over the rest waits. A peer that sends
more than may be held is disconnected; where a key has more than its share, the one of its peers that has
most. Knows bytes, times, keys, tenants and table rows; does not know what messages mean.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.sockets import DraftSocket, Heard
from ssd.draft.server.session import DraftSession

FRAMES_AT_ONCE = 1024
"""Received before anything is applied."""
MAX_BYTES_OF_PEER = 64 << 20
"""More than the openings of 256 sequences of 32,768 tokens, which an honest engine may send at once."""
MAX_BYTES_OF_KEY = 128 << 20
LEAST_SECONDS = 0.010
"""That a turn spends on messages if there are any; or as long as half of the last draft step."""


@dataclass(slots=True)
class _Frame:
    heard: Heard
    tenant: str
    parts: Iterator[object] | None = None
    """What is left of it, once it was begun."""


class Intake:
    def __init__(
        self,
        link: DraftSocket,
        clock: Callable[[], float],
        *,
        tenant_of: Callable[[Heard], str],
        weight_of: Callable[[str], float],
    ) -> None:
        self._link, self._clock = link, clock
        self._tenant_of, self._weight_of = tenant_of, weight_of
        self._waiting: dict[str, deque[_Frame]] = {}
        """By tenant; none is empty."""
        self._spent: dict[str, float] = {}
        """Of each tenant that waits, or waited in this turn: seconds by its weight."""
        self._bytes_of_peer: Counter[bytes] = Counter()
        self._bytes_of_key: Counter[str] = Counter()

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def num_bytes(self) -> int:
        """Of frames that wait."""
        return self._bytes_of_key.total()

    def receive(self, timeout: float) -> list[bytes]:
        """What has arrived, waiting for the first if nothing else is there. Peers that sent too much."""
        too_many = list[bytes]()
        for _ in range(FRAMES_AT_ONCE):
            heard = self._link.receive(0.0 if self._waiting else timeout)
            if heard is None:
                break
            self._keep(heard)
            if self._bytes_of_peer[heard.peer] > MAX_BYTES_OF_PEER:
                too_many.append(heard.peer)
            elif self._bytes_of_key[heard.key] > MAX_BYTES_OF_KEY:
                too_many.append(self._largest_of(heard.key))
            else:
                continue
            self.discard(too_many[-1])
        return too_many

    def _largest_of(self, key: str) -> bytes:
        """The peer of this key for which most bytes wait: the one whose frame came last may be honest."""
        frames = itertools.chain.from_iterable(self._waiting.values())
        peers = {each.heard.peer for each in frames if each.heard.key == key}
        return max(peers, key=self._bytes_of_peer.__getitem__)

    def apply(self, begin: Callable[[Heard], Iterable[object]], step_seconds: float) -> None:
        """Message by message; `begin` gives those of a frame, and does each one's work when it is asked for.

        At least one, and then for a turn's time.
        """
        ends = self._clock() + max(LEAST_SECONDS, step_seconds / 2)
        while self._waiting:
            tenant = min(self._waiting, key=self._spent.__getitem__)
            started = self._clock()
            self._go_on(tenant, begin)
            ended = self._clock()
            self._spent[tenant] += (ended - started) / self._weight_of(tenant)
            if ended >= ends:
                break
        self._spent = {each: self._spent[each] for each in self._waiting}

    def discard(self, peer: bytes) -> None:
        """What is left of a peer that was given up."""
        for tenant, frames in list(self._waiting.items()):
            mine = [each for each in frames if each.heard.peer == peer]
            for each in mine:
                self._release(each)
            left = deque(each for each in frames if each.heard.peer != peer)
            if left:
                self._waiting[tenant] = left
            else:
                del self._waiting[tenant]

    def _keep(self, heard: Heard) -> None:
        tenant = self._tenant_of(heard)
        if tenant not in self._waiting:
            # Who comes anew is level with whoever had least: nobody saves up time.
            least = min((self._spent[each] for each in self._waiting), default=0.0)
            self._spent[tenant] = max(least, self._spent.get(tenant, 0.0))
            self._waiting[tenant] = deque()
        self._waiting[tenant].append(_Frame(heard, tenant))
        self._bytes_of_peer[heard.peer] += len(heard.frame)
        self._bytes_of_key[heard.key] += len(heard.frame)

    def _go_on(self, tenant: str, begin: Callable[[Heard], Iterable[object]]) -> None:
        frame = self._waiting[tenant][0]
        if frame.parts is None:
            frame.parts = iter(begin(frame.heard))
        if next(frame.parts, frame) is not frame:
            return
        # It may have been discarded meanwhile, with all of its peer's.
        frames = self._waiting.get(tenant)
        if frames and frames[0] is frame:
            frames.popleft()
            self._release(frame)
            if not frames:
                del self._waiting[tenant]

    def _release(self, frame: _Frame) -> None:
        heard, size = frame.heard, len(frame.heard.frame)
        self._bytes_of_peer[heard.peer] -= size
        self._bytes_of_key[heard.key] -= size
        if not self._bytes_of_peer[heard.peer]:
            del self._bytes_of_peer[heard.peer]


MAX_PEERS_OF_KEY = 1024
"""Engines that may be there at once with one key, or together without a named one."""


@dataclass(slots=True)
class Peer:
    key: str
    """The name of its key; empty: it has none of its own."""
    tenant: str
    vocab_size: int
    rows: NDArray[np.bool_]
    """Which rows of the forest are its sequences'."""
    last_sign: float = 0.0
    """When it last heard from here."""
    is_owed: bool = False
    """It has told something since, and waits for a word."""
    asked: set[int] = field(default_factory=set)
    """Sequences whose whole trees it wants; each is sent once a turn."""
    sessions: dict[int, tuple[int, DraftSession]] = field(default_factory=dict)
    """Of each sequence: the scheduler's number for it, and its session."""


class Peers:
    def __init__(self) -> None:
        self._peers: dict[bytes, Peer] = {}
        self._num_of_key: Counter[str] = Counter()
        self._num_of_tenant: Counter[str] = Counter()

    def __iter__(self) -> Iterator[tuple[bytes, Peer]]:
        """Of those that are there now: some may be forgotten meanwhile."""
        return iter(list(self._peers.items()))

    def __getitem__(self, name: bytes) -> Peer:
        return self._peers[name]

    def get(self, name: bytes) -> Peer | None:
        return self._peers.get(name)

    def add(self, name: bytes, peer: Peer) -> None:
        self._peers[name] = peer
        self._num_of_key[peer.key] += 1
        self._num_of_tenant[peer.tenant] += 1

    def pop(self, name: bytes) -> Peer | None:
        peer = self._peers.pop(name, None)
        if peer is not None:
            for counter, each in ((self._num_of_key, peer.key), (self._num_of_tenant, peer.tenant)):
                counter[each] -= 1
                if not counter[each]:
                    del counter[each]
        return peer

    def has_tenant(self, tenant: str) -> bool:
        return tenant in self._num_of_tenant

    def refusal_of(self, key: str) -> str:
        """Why no other engine with this key is taken; empty: it is."""
        if self._num_of_key[key] < MAX_PEERS_OF_KEY:
            return ""
        return f"{MAX_PEERS_OF_KEY} engines with this key are here already: give some another draft or key"
