"""The KV blocks of sessions: allocates them, adds to them as texts grow, and shares those of common prefixes.

The tables hold a copy of each session's block table, for the rows of a step. Knows texts and the draft's
blocks; does not know models, trees, or which session is evicted when there are too few blocks.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ssd.draft.server.offers import CachedPrefixes, Offers
from ssd.draft.server.session import DraftSession, Ledger, Longs
from ssd.draft.tree.tables import Shape
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks

WriteBlocks = Callable[[int, int, Sequence[int]], None]


class KvBlocks:
    def __init__(
        self, shape: Shape, write: WriteBlocks, blocks: BlockManager, ledger: Ledger, offers: Offers
    ) -> None:
        """`write`: writes entries of a row's block table, from a place on. `offers`: have blocks kept."""
        self._block, self._write_table = shape.block, write
        self._blocks, self._ledger, self._offers = blocks, ledger, offers
        self._prefixes = CachedPrefixes(blocks)
        self._num_written: dict[int, int] = {}
        """By row: blocks that are written to the tables."""
        self._num_shared = np.zeros(shape.sequences + 1, np.int64)
        """By row: full blocks that are in the prefix cache."""
        self._lacking: dict[int, DraftSession] = {}
        """By row: sessions whose text has outgrown its blocks."""

    @property
    def usage(self) -> float:
        return self._blocks.usage

    @property
    def lacking(self) -> dict[int, DraftSession]:
        return self._lacking

    @property
    def num_free(self) -> int:
        """Blocks that a new session may have; negative if more are kept for offers than are free."""
        return self._blocks.num_free - self._offers.num_blocks

    def of(self, session: DraftSession) -> Sequence[int]:
        return self._blocks.block_table(session.row)

    def num_only_of(self, rows: Iterable[int]) -> int:
        """Blocks that closing the sessions of these rows would free: other sessions may share some."""
        return self._blocks.num_only_of(rows)

    def allocate(self, row: int, session: DraftSession) -> int:
        """Allocates blocks for the text of a session that will get this row. Returns how many of its tokens
        are cached in them.

        Raises OutOfBlocks, and then changes nothing.
        """
        if self._offers.num_blocks and self.num_lacking(session.tokens, session.tenant):
            raise OutOfBlocks("the free blocks are kept for sequences that were asked about")
        return self._blocks.allocate(row, session.tokens, cache_key=session.tenant)

    def adopt(self, session: DraftSession, num_computed: int) -> int:
        """Takes over blocks that other sessions of its tenant have read since.

        Returns how many of its tokens are read now.
        """
        known = self._blocks.adopt(session.row, session.tokens, num_computed)
        if known > num_computed:
            self._num_written[session.row] = num_computed // self._block
            self._write(session)
            self._num_shared[session.row] = known // self._block
        return known

    def content(self, session: DraftSession, num_computed: int) -> bytes | None:
        """Identifies the text up to the end of its next unread block. None: that block is not shared."""
        return self._blocks.next_content(session.row, session.tokens, num_computed)

    def num_lacking(self, tokens: Sequence[int], tenant: str) -> int:
        """Blocks that a tenant's text needs beyond the free ones that are not kept."""
        return self._blocks.num_lacking(tokens, cache_key=tenant, num_kept=self._offers.num_blocks)

    def num_cached(self, tenant: str, prefix: bytes) -> int:
        """Leading tokens that the tenant has in the cache, of a text with this prefix (as in ASK)."""
        return self._prefixes.num_cached(tenant, prefix)

    def num_blocks_for(self, num_tokens: int) -> int:
        return self._blocks.num_blocks_for(num_tokens)

    def enter(self, session: DraftSession) -> None:
        """Call when a session that has blocks gets its row."""
        self._num_written[session.row] = self._num_shared[session.row] = 0
        self._write(session)

    def free(self, session: DraftSession) -> None:
        self._blocks.free(session.row)
        self._prefixes.forget_row(session.row)
        del self._num_written[session.row]
        self._lacking.pop(session.row, None)

    def cover(self, session: DraftSession) -> bool:
        """Allocates blocks for all of a text. Returns False, and notes the session, if there are too few."""
        row = session.row
        if len(session.tokens) <= self._ledger.covered[row]:
            return True
        try:
            self._blocks.grow(row, len(session.tokens))
        except OutOfBlocks:
            self._lacking[row] = session
            return False
        self._lacking.pop(row, None)
        self._write(session)
        return True

    def cover_lacking(self) -> None:
        """Tries again to allocate blocks for sessions that lack some."""
        for session in list(self._lacking.values()):
            self.cover(session)

    def share(self, session: DraftSession, num_computed: int) -> None:
        """Puts the first `num_computed` tokens into the prefix cache of its tenant."""
        self._blocks.commit(session.row, session.tokens, num_computed, num_computed)
        self._prefixes.note(session.row, session.tenant, session.tokens, num_computed)
        self._num_shared[session.row] = num_computed // self._block

    def are_full(self, num_computed: Longs) -> Longs:
        """Rows with full blocks that are not in the prefix cache yet."""
        return np.flatnonzero(num_computed // self._block > self._num_shared)

    def check_integrity(self, texts: dict[int, DraftSession], tables: Longs) -> None:
        """`tables`: the block tables that steps read."""
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != set(texts) or set(self._num_written) != set(texts):
            raise RuntimeError("the sessions that hold KV blocks are not the open ones")
        for session in texts.values():
            table = list(self.of(session))
            if tables[session.row, : len(table)].tolist() != table:
                raise RuntimeError(f"the tables have a wrong block table for sequence {session.seq}")

    def _write(self, session: DraftSession) -> None:
        row, table = session.row, self.of(session)
        start = self._num_written[row]
        if len(table) > start:
            # In one write: on a device each write is a launch.
            self._write_table(row, start, table[start:])
        self._num_written[row] = len(table)
        self._ledger.covered[row] = self._blocks.num_covered(row)
