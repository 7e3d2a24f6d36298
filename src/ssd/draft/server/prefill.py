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
        sessions: Mapping[int, DraftSession],
        kv_blocks: KvBlocks,
        tenants: Tenants,
        ledger: Ledger,
        chunk: int,
    ) -> None:
        """`sessions`: by row, the oldest first. `chunk`: tokens of prompts read in one step."""
        self._tables, self._xp = forest.tables, forest.xp
        self._sessions, self._kv_blocks, self._tenants, self._ledger = sessions, kv_blocks, tenants, ledger
        self._chunk = chunk
        self.unread: set[int] = set()
        """Rows of sessions whose text has too many unread tokens to be read by rows of a step."""

    def choose(self) -> list[PrefillChunk]:
        """Chunks for the next step. Marks them as read.

        A text's last token is left to the step's rows: its logits are needed.
        """
        if not self.unread:
            return []
        lacking = self._lacking()
        asking = {self._sessions[each].tenant for each in lacking}
        budgets = self._tenants.prompt_tokens(self._chunk, asking)
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
