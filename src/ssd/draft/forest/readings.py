"""Which texts are read beside a step's rows, and how much of each: those that are too far behind for rows.

A tenant's tokens of a step go half to its oldest text that waits, and else to the shortest first, so short
prompts are quick and long ones end too. What another text of the tenant has read meanwhile is taken over, and
of texts that begin alike one reads at a time: a prefix is read once. Knows texts, blocks and accounts; no
models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssd.attention.rows import PlainRow
from ssd.draft.forest.forest import Forest
from ssd.draft.forest.ledger import Ledger
from ssd.draft.forest.planted import Planted
from ssd.draft.forest.tenants import Tenants
from ssd.draft.forest.trunks import Trunks


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of a text that are read beside a step's rows; their logits are not wanted."""

    row: int
    """Of the tables."""
    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]

    def as_row(self) -> PlainRow:
        return PlainRow(self.tokens, self.start, self.blocks, 0, generated=False)


class Readings:
    def __init__(
        self,
        forest: Forest,
        planted: Mapping[int, Planted],
        trunks: Trunks,
        tenants: Tenants,
        ledger: Ledger,
        chunk: int,
    ) -> None:
        """`chunk`: tokens of prompts read in one step."""
        self._tables, self._xp = forest.tables, forest.xp
        self._planted, self._trunks, self._tenants, self._ledger = planted, trunks, tenants, ledger
        self._chunk = chunk
        self.unread: set[int] = set()
        """Sessions whose text is too far behind to be read by rows."""

    def choose(self) -> list[tuple[Reading, int]]:
        """Chunks of texts, all but their last token, and whose they are. They count as read."""
        if not self.unread:
            return []
        lacking = self._lacking()
        asking = {self._planted[each].tenant for each in lacking}
        budgets = self._tenants.prompt_tokens(self._chunk, asking)
        allotted = dict[int, int]()
        taken = set[bytes]()
        for session_id, most in self._in_turn(lacking, budgets):
            tenant = self._planted[session_id].tenant
            count = min(most, budgets[tenant], lacking[session_id] - allotted.get(session_id, 0))
            if count > 0 and (session_id in allotted or self._is_first(session_id, lacking, taken)):
                allotted[session_id] = allotted.get(session_id, 0) + count
                budgets[tenant] -= count
        return [(self._read(each, count, lacking[each]), each) for each, count in allotted.items()]

    def finish(self, readings: Sequence[tuple[Reading, int]]) -> None:
        """They were read: others may share them."""
        for reading, session_id in readings:
            num_read = reading.start + len(reading.tokens)
            self._trunks.share(session_id, self._planted[session_id], num_read)

    def _lacking(self) -> dict[int, int]:
        """Of each text that may be read now: how many of its tokens are unread, but for the last."""
        num_read = self._xp.told(self._tables.num_read)
        found = dict[int, int]()
        for session_id in sorted(self.unread - self._trunks.lacking.keys()):
            planted = self._planted[session_id]
            if not self._ledger.may_grow(planted.row):
                continue
            known = int(num_read[planted.row])
            adopted = self._trunks.adopt(session_id, planted, known)
            if adopted > known:
                self._tables.num_read[planted.row] = adopted
            found[session_id] = len(planted.tokens) - 1 - adopted
            if not found[session_id]:
                self.unread.discard(session_id)
                del found[session_id]
        return found

    def _in_turn(self, lacking: Mapping[int, int], budgets: Mapping[str, int]) -> list[tuple[int, int]]:
        """Sessions in the order in which they are served, with the most that each gets at that turn."""
        oldest = dict[str, int]()
        for session_id in lacking:
            oldest.setdefault(self._planted[session_id].tenant, session_id)
        firsts = [(each, (budgets[tenant] + 1) // 2) for tenant, each in oldest.items()]
        by_length = sorted(lacking, key=lambda each: (lacking[each], each))
        return [*firsts, *((each, lacking[each]) for each in by_length)]

    def _is_first(self, session_id: int, lacking: Mapping[int, int], taken: set[bytes]) -> bool:
        """Whether nobody reads the same block in this step; from here on this text does."""
        planted = self._planted[session_id]
        content = self._trunks.content(session_id, planted, len(planted.tokens) - 1 - lacking[session_id])
        if content in taken:
            return False
        if content is not None:
            taken.add(content)
        return True

    def _read(self, session_id: int, count: int, lacking: int) -> Reading:
        planted = self._planted[session_id]
        start = len(planted.tokens) - 1 - lacking
        if count == lacking:
            self.unread.discard(session_id)
        self._tables.num_read[planted.row] = start + count
        tokens = planted.tokens[start : start + count]
        return Reading(planted.row, tokens, start, self._trunks.of(session_id))
