"""The KV blocks of sessions, and prefill, which fills them with keys of prompts.

`KvBlocks` allocates blocks, adds to them as texts grow, and shares those of common prefixes. The tables hold
a copy of each session's block table, for the rows of a step.

`Prefill` chooses which prompts are read beside a step's rows, and how many tokens of each. Texts with only a
few unread tokens are read by rows of the step itself. Half of a tenant's tokens go to its oldest waiting text
and the rest to the shortest first, so short prompts are quick and long ones finish too. A common prefix is
read once: a text takes over blocks that another text of its tenant has read, and of texts with the same next
block only one reads it.

Knows texts and the draft's blocks; does not know models, trees, or which session is evicted when there are
too few blocks.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ssd.draft.server.session import DraftSession, Ledger, Longs
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import PrefillChunk
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


class Prefill:
    def __init__(
        self,
        forest: Forest,
        sessions: Mapping[int, DraftSession],
        kv_blocks: KvBlocks,
        ledger: Ledger,
        divide: Callable[[set[str]], dict[str, int]],
    ) -> None:
        """`sessions`: by row, the oldest first.

        `divide`: the prompt tokens of one step that each of these tenants gets.
        """
        self._tables, self._xp = forest.tables, forest.xp
        self._sessions, self._kv_blocks, self._ledger, self._divide = sessions, kv_blocks, ledger, divide
        self.unread: set[int] = set()
        """Rows of sessions whose text has too many unread tokens to be read by rows of a step."""

    def choose(self) -> list[PrefillChunk]:
        """Chunks for the next step. Marks them as read.

        A text's last token is left to the step's rows: its logits are needed.
        """
        if not self.unread:
            return []
        lacking = self._lacking()
        budgets = self._divide({self._sessions[each].tenant for each in lacking})
        allotted = dict[int, int]()
        taken = set[bytes]()
        for row, most in self._in_turn(lacking, budgets):
            tenant = self._sessions[row].tenant
            count = min(most, budgets[tenant], lacking[row] - allotted.get(row, 0))
            if count > 0 and (row in allotted or self._is_first(row, lacking, taken)):
                allotted[row] = allotted.get(row, 0) + count
                budgets[tenant] -= count
        return [self._read(row, count, lacking[row]) for row, count in allotted.items()]

    def finish(self, chunks: Sequence[PrefillChunk]) -> None:
        """Call after the forward: shares the chunks' blocks."""
        for chunk in chunks:
            self._kv_blocks.share(self._sessions[chunk.row], chunk.start + len(chunk.tokens))

    def _lacking(self) -> dict[int, int]:
        """By row of each session that may be prefilled now: how many tokens are unread, without the last one.

        The oldest session comes first.
        """
        num_computed = self._xp.to_host(self._tables.num_computed)
        found = dict[int, int]()
        waiting = self.unread - self._kv_blocks.lacking.keys()
        for row, session in self._sessions.items():
            if row not in waiting or not self._ledger.may_grow(row):
                continue
            known = int(num_computed[row])
            adopted = self._kv_blocks.adopt(session, known)
            if adopted > known:
                self._tables.num_computed[row] = adopted
            found[row] = len(session.tokens) - 1 - adopted
            if not found[row]:
                self.unread.discard(row)
                del found[row]
        return found

    def _in_turn(self, lacking: Mapping[int, int], budgets: Mapping[str, int]) -> list[tuple[int, int]]:
        """Rows in the order in which they are served, with the most tokens that each may get."""
        oldest = dict[str, int]()
        for row in lacking:
            oldest.setdefault(self._sessions[row].tenant, row)
        firsts = [(row, (budgets[tenant] + 1) // 2) for tenant, row in oldest.items()]
        # Of texts with as much to read the oldest comes first: sorting keeps their order.
        by_length = sorted(lacking, key=lacking.__getitem__)
        return [*firsts, *((row, lacking[row]) for row in by_length)]

    def _is_first(self, row: int, lacking: Mapping[int, int], taken: set[bytes]) -> bool:
        """Whether no other text reads the same block in this step. If so, reserves the block."""
        session = self._sessions[row]
        content = self._kv_blocks.content(session, len(session.tokens) - 1 - lacking[row])
        if content in taken:
            return False
        if content is not None:
            taken.add(content)
        return True

    def _read(self, row: int, count: int, lacking: int) -> PrefillChunk:
        session = self._sessions[row]
        start = len(session.tokens) - 1 - lacking
        if count == lacking:
            self.unread.discard(row)
        self._tables.num_computed[row] = start + count
        tokens = session.tokens[start : start + count]
        return PrefillChunk(row, tokens, start, self._kv_blocks.of(session))
