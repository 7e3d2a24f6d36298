"""Room that is kept for sequences that engines have asked about, and what of their texts is cached.

After ASK a draft keeps a tree and KV blocks for a second, in which the engine may send the text. Offers are
bound by nothing but that time: a tenant that has less than its share may take the room of another's offer.
Knows owners, tenants, sizes, hashes and times; does not know messages, peers or texts.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd.draft.protocol.messages import (
    HASH_BYTES,
    OFFER_SECONDS,
    PREFIX_CHUNK,
    next_prefix_hash,
    pack_ints,
)
from ssd.kvcache.block_manager import BlockManager

Owner = tuple[bytes, int]
"""A peer, and its id of the sequence."""


@dataclass(frozen=True, slots=True)
class KeptRoom:
    number: int
    """Another for each offer, from 1."""
    tenant: str
    num_blocks: int
    until: float


class Offers:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._next_number = clock, itertools.count(1).__next__
        self._kept: OrderedDict[Owner, KeptRoom] = OrderedDict()
        """The oldest first: it ends first."""

    def __iter__(self) -> "itertools.chain[KeptRoom]":
        self._expire()
        return itertools.chain(self._kept.values())

    @property
    def num_sequences(self) -> int:
        self._expire()
        return len(self._kept)

    @property
    def num_blocks(self) -> int:
        return sum(each.num_blocks for each in self)

    def keep(self, owner: Owner, tenant: str, num_blocks: int) -> None:
        self.release(owner)
        until = self._clock() + OFFER_SECONDS
        self._kept[owner] = KeptRoom(self._next_number(), tenant, num_blocks, until)

    def release(self, owner: Owner) -> None:
        """The sequence is opened, or will not be."""
        self._kept.pop(owner, None)

    def release_peer(self, peer: bytes) -> None:
        for owner in [each for each in self._kept if each[0] == peer]:
            del self._kept[owner]

    def release_number(self, number: int) -> None:
        for owner in [owner for owner, each in self._kept.items() if each.number == number]:
            del self._kept[owner]

    def _expire(self) -> None:
        while self._kept:
            owner, oldest = next(iter(self._kept.items()))
            if oldest.until > self._clock():
                return
            del self._kept[owner]


class CachedPrefixes:
    """How much of a text is in the prefix cache, by the hashes of ASK. Separate for each tenant."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._contents: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        """By tenant and hash: the last block of that prefix, as the block manager identifies it."""
        self._hashed: dict[int, tuple[int, bytes]] = {}
        """By row: tokens that are hashed, and the last hash."""

    def note(self, row: int, tenant: str, tokens: Sequence[int], num_computed: int) -> None:
        """The full blocks of the first `num_computed` tokens are in the prefix cache."""
        size = self._blocks.block_size
        end, last = self._hashed.get(row, (0, b""))
        while end + PREFIX_CHUNK <= num_computed // size * size:
            last = next_prefix_hash(last, pack_ints(tokens[end : end + PREFIX_CHUNK]))
            end += PREFIX_CHUNK
            content = self._blocks.content(row, end)
            if content is not None:
                self._contents[tenant, last] = content
        self._hashed[row] = end, last
        # There are never more of them in the cache.
        while len(self._contents) > self._blocks.num_blocks:
            self._contents.popitem(last=False)

    def forget_row(self, row: int) -> None:
        self._hashed.pop(row, None)

    def num_cached(self, tenant: str, prefix: bytes) -> int:
        """Leading tokens of a text whose last block is in the cache; those before it usually are too."""
        for end in range(len(prefix), 0, -HASH_BYTES):
            content = self._contents.get((tenant, prefix[end - HASH_BYTES : end]))
            if content is not None and self._blocks.is_cached(content):
                return end // HASH_BYTES * PREFIX_CHUNK
        return 0
