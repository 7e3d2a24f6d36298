"""The KV blocks of sessions: allocation, growth with the text, and sharing of common prefixes.

The tables hold a copy of each session's block table, for the rows of a step. Knows the draft's blocks; does
not know trees, or which session is evicted when there are too few blocks.
"""

from collections.abc import Sequence

import numpy as np

from ssd.draft.server.session import DraftSession, Ledger, Longs
from ssd.draft.tree.forest import Forest
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks


class KvBlocks:
    def __init__(self, forest: Forest, blocks: BlockManager, ledger: Ledger) -> None:
        self._tables, self._xp, self._block = forest.tables, forest.xp, forest.shape.block
        self._blocks, self._ledger = blocks, ledger
        self._num_written: dict[int, int] = {}
        """By row: blocks that are written to the tables."""
        self._num_shared = np.zeros(forest.shape.sequences + 1, np.int64)
        """By row: full blocks that are in the prefix cache."""
        self._lacking: dict[int, DraftSession] = {}
        """By row: sessions whose text has outgrown its blocks."""

    @property
    def usage(self) -> float:
        return self._blocks.usage

    @property
    def lacking(self) -> dict[int, DraftSession]:
        return self._lacking

    def of(self, session: DraftSession) -> Sequence[int]:
        return self._blocks.block_table(session.row)

    def allocate(self, row: int, session: DraftSession) -> int:
        """Allocates blocks for the text of a session that will get this row. Returns how many of its tokens
        are cached in them.

        Raises OutOfBlocks, and then changes nothing.
        """
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
        """Blocks that a tenant's text needs beyond the free ones."""
        return self._blocks.num_lacking(tokens, cache_key=tenant)

    def num_blocks_for(self, num_tokens: int) -> int:
        return self._blocks.num_blocks_for(num_tokens)

    def enter(self, session: DraftSession) -> None:
        """Call when a session that has blocks gets its row."""
        self._num_written[session.row] = self._num_shared[session.row] = 0
        self._write(session)

    def free(self, session: DraftSession) -> None:
        self._blocks.free(session.row)
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
        self._num_shared[session.row] = num_computed // self._block

    def are_full(self, num_computed: Longs) -> Longs:
        """Rows with full blocks that are not in the prefix cache yet."""
        return np.flatnonzero(num_computed // self._block > self._num_shared)

    def check_integrity(self, texts: dict[int, DraftSession]) -> None:
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != set(texts) or set(self._num_written) != set(texts):
            raise RuntimeError("the sessions that hold KV blocks are not the open ones")
        for session in texts.values():
            table = list(self.of(session))
            written = self._xp.to_host(self._tables.blocks[session.row])[: len(table)].tolist()
            if written != table:
                raise RuntimeError(f"the tables have a wrong block table for sequence {session.seq}")

    def _write(self, session: DraftSession) -> None:
        row, table = session.row, self.of(session)
        start = self._num_written[row]
        if len(table) > start:
            # In one write: on a device each write is a launch.
            self._tables.blocks[row, start : len(table)] = self._xp.of(table[start:])
        self._num_written[row] = len(table)
        self._ledger.covered[row] = self._blocks.num_covered(row)
