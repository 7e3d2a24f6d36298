"""The KV blocks of texts: who has which, who lacks some, and what of a text others may share.

The tables hold a copy of each block table, for the rows of a step. Knows the draft's blocks; does not know
trees, or who has to go when there are not enough.
"""

from collections.abc import Sequence

import numpy as np

from ssd.draft.server.ledger import Ledger, Longs
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.forest import Forest
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks


class KvBlocks:
    def __init__(self, forest: Forest, blocks: BlockManager, ledger: Ledger) -> None:
        self._tables, self._xp, self._block = forest.tables, forest.xp, forest.shape.block
        self._blocks, self._ledger = blocks, ledger
        self._num_written: dict[int, int] = {}
        """Of each session: blocks that the tables know of."""
        self._num_shared = np.zeros(forest.shape.sequences + 1, np.int64)
        """Full blocks of each row that others may find."""
        self._lacking: dict[int, DraftSession] = {}
        """Whose text has outgrown its blocks."""

    @property
    def usage(self) -> float:
        return self._blocks.usage

    @property
    def lacking(self) -> dict[int, DraftSession]:
        return self._lacking

    def of(self, session_id: int) -> Sequence[int]:
        return self._blocks.block_table(session_id)

    def allocate(self, session_id: int, session: DraftSession) -> int:
        """Blocks for a text; how many of its tokens are known in them. OutOfBlocks: nothing was changed."""
        return self._blocks.allocate(session_id, session.tokens, cache_key=session.tenant)

    def adopt(self, session_id: int, session: DraftSession, num_read: int) -> int:
        """Takes over what others of its tenant have read since; returns how many of its tokens are read."""
        known = self._blocks.adopt(session_id, session.tokens, num_read)
        if known > num_read:
            self._num_written[session_id] = num_read // self._block
            self._write(session_id, session.row)
            self._num_shared[session.row] = known // self._block
        return known

    def content(self, session_id: int, session: DraftSession, num_read: int) -> bytes | None:
        """Names the content of the next block to be read; texts that begin alike agree. None: not shared."""
        return self._blocks.next_content(session_id, session.tokens, num_read)

    def num_lacking(self, tokens: Sequence[int], tenant: str) -> int:
        """Blocks that a tenant's text needs beyond those that are free."""
        return self._blocks.num_lacking(tokens, cache_key=tenant)

    def num_blocks_for(self, num_tokens: int) -> int:
        return self._blocks.num_blocks_for(num_tokens)

    def enter(self, session_id: int, session: DraftSession) -> None:
        """A session that has its blocks now has a row too."""
        self._num_written[session_id] = self._num_shared[session.row] = 0
        self._write(session_id, session.row)

    def free(self, session_id: int) -> None:
        self._blocks.free(session_id)
        del self._num_written[session_id]
        self._lacking.pop(session_id, None)

    def cover(self, session_id: int, session: DraftSession) -> bool:
        """Whether there are blocks for all of a text; one without is remembered."""
        row = session.row
        if len(session.tokens) <= self._ledger.covered[row]:
            return True
        try:
            self._blocks.grow(session_id, len(session.tokens))
        except OutOfBlocks:
            self._lacking[session_id] = session
            return False
        self._lacking.pop(session_id, None)
        self._write(session_id, row)
        return True

    def cover_lacking(self) -> None:
        """There may be blocks again."""
        for session_id, session in list(self._lacking.items()):
            self.cover(session_id, session)

    def share(self, session_id: int, session: DraftSession, num_read: int) -> None:
        """So many of its tokens lie in their blocks: its tenant's texts that begin alike may use them."""
        self._blocks.commit(session_id, session.tokens, num_read, num_read)
        self._num_shared[session.row] = num_read // self._block

    def are_full(self, num_read: Longs) -> Longs:
        """The rows that have full blocks which nobody can find yet."""
        return np.flatnonzero(num_read // self._block > self._num_shared)

    def check_integrity(self, texts: dict[int, DraftSession]) -> None:
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != set(texts) or set(self._num_written) != set(texts):
            raise RuntimeError("blocks are held by others than the open sequences")
        for session_id, session in texts.items():
            table = list(self.of(session_id))
            written = self._xp.to_host(self._tables.blocks[session.row])[: len(table)].tolist()
            if written != table:
                raise RuntimeError(f"the tables have other blocks of sequence {session.seq} than it holds")

    def _write(self, session_id: int, row: int) -> None:
        table, start = self.of(session_id), self._num_written[session_id]
        if len(table) > start:
            # At once: on a device each write is a launch.
            self._tables.blocks[row, start : len(table)] = self._xp.of(table[start:])
        self._num_written[session_id] = len(table)
        self._ledger.covered[row] = self._blocks.num_covered(session_id)
