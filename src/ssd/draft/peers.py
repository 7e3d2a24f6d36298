"""The engines that a draft serves: whose key each has, what is open for it, how many there are of each.

Knows keys, tenants and rows of the forest. Does not know messages or sockets.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ssd.draft.forest.planted import Planted

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
    sessions: dict[int, tuple[int, Planted]] = field(default_factory=dict)
    """Of each sequence: the grower's number for it, and what is planted for it."""


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
