"""Prefill: chooses which prompts are read beside a step's rows, and how many tokens of each.

Texts with only a few unread tokens are read by rows of the step itself; prefill is for the others. Half of a
tenant's tokens go to its oldest waiting text and the rest to the shortest first, so short prompts are quick
and long ones finish too. A common prefix is read once: a text takes over blocks that another text of its
tenant has read, and of texts with the same next block only one reads it. Knows texts, blocks and accounts;
does not know models.
"""

from collections.abc import Mapping, Sequence

from ssd.draft.server.kv_blocks import KvBlocks
from ssd.draft.server.session import DraftSession, Ledger
from ssd.draft.server.tenants import Tenants
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import PrefillChunk


class Prefill:
    def __init__(
        self,
        forest: Forest,
        session: Mapping[int, DraftSession],
        kv_blocks: KvBlocks,
        tenants: Tenants,
        ledger: Ledger,
        chunk: int,
    ) -> None:
        """`chunk`: tokens of prompts read in one step."""
        self._tables, self._xp = forest.tables, forest.xp
        self._sessions, self._kv_blocks, self._tenants, self._ledger = session, kv_blocks, tenants, ledger
        self._chunk = chunk
        self.unread: set[int] = set()
        """Sessions whose text has too many unread tokens to be read by rows."""

    def choose(self) -> list[tuple[PrefillChunk, int]]:
        """Chunks for the next step, with their sessions. Marks them as read.

        A text's last token is left to the step's rows: its logits are needed.
        """
        if not self.unread:
            return []
        lacking = self._lacking()
        asking = {self._sessions[each].tenant for each in lacking}
        budgets = self._tenants.prompt_tokens(self._chunk, asking)
        allotted = dict[int, int]()
        taken = set[bytes]()
        for session_id, most in self._in_turn(lacking, budgets):
            tenant = self._sessions[session_id].tenant
            count = min(most, budgets[tenant], lacking[session_id] - allotted.get(session_id, 0))
            if count > 0 and (session_id in allotted or self._is_first(session_id, lacking, taken)):
                allotted[session_id] = allotted.get(session_id, 0) + count
                budgets[tenant] -= count
        return [(self._read(each, count, lacking[each]), each) for each, count in allotted.items()]

    def finish(self, chunks: Sequence[tuple[PrefillChunk, int]]) -> None:
        """Call after the forward: shares the chunks' blocks."""
        for chunk, session_id in chunks:
            num_read = chunk.start + len(chunk.tokens)
            self._kv_blocks.share(session_id, self._sessions[session_id], num_read)

    def _lacking(self) -> dict[int, int]:
        """By session that may be prefilled now: how many tokens are unread, without the last one."""
        num_read = self._xp.to_host(self._tables.num_read)
        found = dict[int, int]()
        for session_id in sorted(self.unread - self._kv_blocks.lacking.keys()):
            session = self._sessions[session_id]
            if not self._ledger.may_grow(session.row):
                continue
            known = int(num_read[session.row])
            adopted = self._kv_blocks.adopt(session_id, session, known)
            if adopted > known:
                self._tables.num_read[session.row] = adopted
            found[session_id] = len(session.tokens) - 1 - adopted
            if not found[session_id]:
                self.unread.discard(session_id)
                del found[session_id]
        return found

    def _in_turn(self, lacking: Mapping[int, int], budgets: Mapping[str, int]) -> list[tuple[int, int]]:
        """Sessions in the order in which they are served, with the most tokens that each may get."""
        oldest = dict[str, int]()
        for session_id in lacking:
            oldest.setdefault(self._sessions[session_id].tenant, session_id)
        firsts = [(each, (budgets[tenant] + 1) // 2) for tenant, each in oldest.items()]
        by_length = sorted(lacking, key=lambda each: (lacking[each], each))
        return [*firsts, *((each, lacking[each]) for each in by_length)]

    def _is_first(self, session_id: int, lacking: Mapping[int, int], taken: set[bytes]) -> bool:
        """Whether no other text reads the same block in this step. If so, reserves the block."""
        session = self._sessions[session_id]
        content = self._kv_blocks.content(session_id, session, len(session.tokens) - 1 - lacking[session_id])
        if content in taken:
            return False
        if content is not None:
            taken.add(content)
        return True

    def _read(self, session_id: int, count: int, lacking: int) -> PrefillChunk:
        session = self._sessions[session_id]
        start = len(session.tokens) - 1 - lacking
        if count == lacking:
            self.unread.discard(session_id)
        self._tables.num_read[session.row] = start + count
        tokens = session.tokens[start : start + count]
        return PrefillChunk(session.row, tokens, start, self._kv_blocks.of(session_id))
