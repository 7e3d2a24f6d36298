"""Assigns blocks of the paged KV memory to sequences, and finds blocks that a prompt can reuse.

Knows sequence ids, their tokens and block numbers. Does not know tensors or scheduling: if blocks run out, it
raises OutOfBlocks and changes nothing.

A block is in one of three states: *used* (in at least one table), *cached* (in no table, but its content is
registered and can be reused) or *plain free*. It is registered under a digest of everything its keys and
values depend on: the cache key and all tokens from the start of the sequence to the end of the block. Only
full blocks of committed tokens are registered, and registered blocks are never written to.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from ssd.kvcache.free_blocks import FreeBlocks

DIGEST_SIZE = 32  # wide enough to make finding a prompt with the same digest as another infeasible


class OutOfBlocks(Exception):  # noqa: N818 - exhaustion is a state here, not an error
    """Fewer blocks are free than needed. Expected under load; nothing has been changed."""


class IntegrityError(RuntimeError):
    """check_integrity found an invalid state: a bug."""


@dataclass(slots=True)
class _Table:
    blocks: list[int]
    digests: list[bytes]  # digests[0] is the root of the chain, digests[i + 1] the digest of blocks[i]


class BlockManager:
    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._tables: dict[int, _Table] = {}
        self._num_references = [0] * num_blocks
        self._free = FreeBlocks(num_blocks)
        self._cached: OrderedDict[int, None] = OrderedDict()  # first in, first evicted
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated: plain free and cached ones."""
        return self._free.num_free + len(self._cached)

    @property
    def usage(self) -> float:
        """The share of blocks held by sequences, 0 to 1."""
        return 1 - self.num_free / self.num_blocks

    @property
    def seq_ids(self) -> KeysView[int]:
        return self._tables.keys()

    def block_table(self, seq_id: int) -> Sequence[int]:
        """The table itself, not a copy: it is valid during the current step."""
        return self._tables[seq_id].blocks

    def num_covered(self, seq_id: int) -> int:
        """Number of positions that the sequence's blocks can hold."""
        return len(self._tables[seq_id].blocks) * self.block_size

    def fits(self, seq_id: int, num_tokens: int) -> bool:
        """Whether the sequence has exactly the blocks that this number of tokens needs."""
        return len(self._tables[seq_id].blocks) == -(-num_tokens // self.block_size)

    def max_coverable(self, seq_id: int) -> int:
        """Number of positions that the sequence's blocks could hold with all free blocks."""
        return (len(self._tables[seq_id].blocks) + self.num_free) * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(
        self, seq_id: int, tokens: Sequence[int], *, num_reusable: int | None = None, cache_key: str = ""
    ) -> int:
        """Gives a new sequence blocks for all its tokens; returns how many leading tokens are computed.

        Only the first `num_reusable` tokens may come from the cache (None: any). `cache_key` separates
        sequences whose keys and values differ for the same tokens, or that must not share blocks for privacy.
        """
        self._refuse_known(seq_id)
        table = self._match(tokens, num_reusable, cache_key)
        num_missing = self._num_missing(tokens, table)
        if num_missing > 0:
            raise OutOfBlocks(f"sequence {seq_id} needs {num_missing} more blocks than are free")
        num_cached = len(table.blocks) * self.block_size
        self._hold(table.blocks)
        self._extend(table, self.num_blocks_for(len(tokens)))
        self._tables[seq_id] = table
        return num_cached

    def content(self, seq_id: int, num_tokens: int) -> bytes | None:
        """The digest of the committed block that ends after this many tokens; None if there is none."""
        digests, (index, rest) = self._tables[seq_id].digests, divmod(num_tokens, self.block_size)
        return None if rest or index >= len(digests) else digests[index]

    def is_cached(self, content: bytes) -> bool:
        """Whether a block with this digest is registered."""
        return content in self._block_of

    def num_only_of(self, seq_ids: Iterable[int]) -> int:
        """Blocks that would be free if these sequences were freed: no others hold them."""
        held = Counter(block for seq_id in seq_ids for block in self._tables[seq_id].blocks)
        return sum(self._num_references[block] == count for block, count in held.items())

    def num_lacking(self, tokens: Sequence[int], *, cache_key: str = "", num_kept: int = 0) -> int:
        """Number of blocks that `allocate` would need for these tokens in addition to the free ones.

        `num_kept` of the free blocks are kept for others.
        """
        return max(0, self._num_missing(tokens, self._match(tokens, None, cache_key)) + num_kept)

    def can_grow(self, seq_id: int, num_tokens: int) -> bool:
        return num_tokens <= self.max_coverable(seq_id)

    def grow(self, seq_id: int, num_tokens: int) -> None:
        """Makes the table cover positions 0..num_tokens-1. Never shrinks it."""
        table = self._tables[seq_id]
        if num_tokens <= len(table.blocks) * self.block_size:
            return
        if not self.can_grow(seq_id, num_tokens):
            raise OutOfBlocks(f"sequence {seq_id} cannot grow to {num_tokens} tokens")
        self._extend(table, self.num_blocks_for(num_tokens))

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Returns the blocks after those that cover positions 0..num_tokens-1. Never grows the table.

        Raises ValueError and changes nothing if one of these blocks is committed, registered or shared.
        """
        table, num_kept = self._tables[seq_id], self.num_blocks_for(num_tokens)
        surplus = table.blocks[num_kept:]
        is_lasting = any(self._num_references[each] > 1 or each in self._digest_of for each in surplus)
        if is_lasting or num_kept < len(table.digests) - 1:
            raise ValueError(f"sequence {seq_id} cannot be trimmed to {num_tokens} tokens: more are final")
        del table.blocks[num_kept:]
        self._release(surplus)

    def commit(self, seq_id: int, tokens: Sequence[int], num_computed: int, num_cacheable: int) -> None:
        """Registers the blocks that became full since the last call.

        The first min(num_computed, num_cacheable) tokens must be final: no drafted tokens.
        """
        if not self.enable_prefix_caching:
            return
        table = self._tables[seq_id]
        num_full = min(num_computed, num_cacheable, len(tokens)) // self.block_size
        for index in range(len(table.digests) - 1, num_full):
            block = table.blocks[index]
            digest = self._digest(table.digests[index], tokens, index)
            table.digests.append(digest)
            # Two sequences may compute the same content at the same time. The first registration remains:
            # tables may already share its block.
            if digest not in self._block_of:
                self._block_of[digest] = block
                self._digest_of[block] = digest

    def adopt(self, seq_id: int, tokens: Sequence[int], num_computed: int) -> int:
        """Replaces blocks that are not computed yet by registered ones with the same content.

        Requires that all full blocks of the first `num_computed` tokens are committed. Returns the new number
        of computed tokens, at most all but the last.
        """
        table, index = self._tables[seq_id], num_computed // self.block_size
        if not self.enable_prefix_caching or len(table.digests) != index + 1:
            return num_computed
        while (index + 1) * self.block_size < len(tokens):
            digest = self._digest(table.digests[index], tokens, index)
            block = self._block_of.get(digest)
            if block is None:
                break
            self._hold([block])
            self._release([table.blocks[index]])
            table.blocks[index] = block
            table.digests.append(digest)
            index += 1
        return max(num_computed, index * self.block_size)

    def next_content(self, seq_id: int, tokens: Sequence[int], num_computed: int) -> bytes | None:
        """The digest of the next block to compute; None if it is not full, or cannot be shared."""
        table, index = self._tables[seq_id], num_computed // self.block_size
        is_full = (index + 1) * self.block_size < len(tokens)
        if not self.enable_prefix_caching or len(table.digests) != index + 1 or not is_full:
            return None
        return self._digest(table.digests[index], tokens, index)

    def can_fork(self, parent_id: int, num_tokens: int) -> bool:
        num_shared = self._num_shared_blocks(parent_id, num_tokens)
        return self.num_blocks_for(num_tokens) - num_shared <= self.num_free

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> int:
        """Gives the child blocks for its first num_tokens; full blocks are shared with its parent.

        Returns the number of shared tokens, at most num_tokens - 1. The parent must have computed them, and
        they must be equal in both sequences. The child computes the rest in its own blocks.
        """
        self._refuse_known(child_id)
        if not self.can_fork(parent_id, num_tokens):
            raise OutOfBlocks(f"sequence {child_id} cannot fork: no block is free for its tail")
        parent = self._tables[parent_id]
        num_shared = self._num_shared_blocks(parent_id, num_tokens)
        table = _Table(parent.blocks[:num_shared], parent.digests[: num_shared + 1])
        self._hold(table.blocks)
        self._extend(table, self.num_blocks_for(num_tokens))
        self._tables[child_id] = table
        return num_shared * self.block_size

    def free(self, seq_id: int) -> None:
        """Returns all blocks of a sequence. Registered content stays until its block is needed."""
        self._release(self._tables.pop(seq_id).blocks)

    def check_integrity(self) -> None:
        """Raises IntegrityError unless tables, references, free sets and registrations agree."""
        references = Counter(block for table in self._tables.values() for block in table.blocks)
        for seq_id, table in self._tables.items():
            num_blocks, num_digests = len(table.blocks), len(table.digests)
            _require(len(set(table.blocks)) == num_blocks, f"sequence {seq_id}: a block twice in its table")
            _require(1 <= num_digests <= num_blocks + 1, f"sequence {seq_id}: more digests than blocks")
        held = {block: count for block, count in enumerate(self._num_references) if count}
        wrong = held.items() ^ references.items()
        _require(not wrong, f"blocks with a wrong reference count: {wrong}")
        idle = {*range(self.num_blocks)} - held.keys()
        misplaced = self._cached.keys() ^ (idle & self._digest_of.keys())
        _require(not misplaced, f"blocks that should be cached and are not, or the reverse: {misplaced}")
        free = {block for block in range(self.num_blocks) if block in self._free}
        misplaced = free ^ (idle - self._digest_of.keys())
        _require(not misplaced, f"blocks that should be free and are not, or the reverse: {misplaced}")
        _require(len(free) == self._free.num_free, "the plain free blocks are miscounted")
        inverse = {block: digest for digest, block in self._block_of.items()}
        _require(len(inverse) == len(self._block_of), "a block is registered under two digests")
        _require(inverse == self._digest_of, "the two directions of the registration differ")

    def _match(self, tokens: Sequence[int], num_reusable: int | None, cache_key: str) -> _Table:
        """The cached blocks of the prompt's start, as a table that holds no references yet."""
        table = _Table([], [blake2b(cache_key.encode(), digest_size=DIGEST_SIZE).digest()])
        if not self.enable_prefix_caching:
            return table
        # The last token must be computed, since its logits decide the next one.
        limit = len(tokens) - 1 if num_reusable is None else min(len(tokens) - 1, num_reusable)
        for index in range(limit // self.block_size):
            digest = self._digest(table.digests[-1], tokens, index)
            block = self._block_of.get(digest)
            if block is None:
                break
            table.blocks.append(block)
            table.digests.append(digest)
        return table

    def _digest(self, parent: bytes, tokens: Sequence[int], index: int) -> bytes:
        block_tokens = tokens[index * self.block_size : (index + 1) * self.block_size]
        return blake2b(parent + array("q", block_tokens).tobytes(), digest_size=DIGEST_SIZE).digest()

    def _num_missing(self, tokens: Sequence[int], matched: _Table) -> int:
        """Number of blocks that are lacking. A matched block in no table counts as free and as needed."""
        num_in_use = sum(self._num_references[block] > 0 for block in matched.blocks)
        return self.num_blocks_for(len(tokens)) - num_in_use - self.num_free

    def _num_shared_blocks(self, parent_id: int, num_tokens: int) -> int:
        num_shared = max(0, num_tokens - 1) // self.block_size
        return min(num_shared, len(self._tables[parent_id].blocks))

    def _refuse_known(self, seq_id: int) -> None:
        if seq_id in self._tables:
            raise ValueError(f"sequence {seq_id} already has blocks; free it first")

    def _hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._num_references[block] += 1
            self._cached.pop(block, None)

    def _release(self, blocks: Sequence[int]) -> None:
        # In reverse, so that the last blocks are evicted first: more prompts can reuse the first ones.
        for block in reversed(blocks):
            self._num_references[block] -= 1
            if self._num_references[block]:
                continue
            if block in self._digest_of:
                self._cached[block] = None
            else:
                self._free.put(block)

    def _extend(self, table: _Table, num_blocks: int) -> None:
        num_fresh = num_blocks - len(table.blocks)
        # Evict all at once, so that adjacent evicted blocks form one run.
        for _ in range(num_fresh - self._free.num_free):
            block, _none = self._cached.popitem(last=False)
            del self._block_of[self._digest_of.pop(block)]
            self._free.put(block)
        for num_wanted in range(num_fresh, 0, -1):
            block = self._free.take(after=table.blocks[-1] if table.blocks else None, num_wanted=num_wanted)
            self._num_references[block] = 1
            table.blocks.append(block)


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise IntegrityError(message)
