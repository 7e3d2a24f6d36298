"""Which prompts are read beside a step's rows, and how many of their tokens.

Texts with only a few unread tokens are read by rows of the step itself. Half of a tenant's tokens go to its
oldest waiting text and the rest to the shortest first, so short prompts are quick and long ones finish too. A
common prefix is read once: a text takes over blocks that another text of its tenant has read, and of texts
with the same next block only one reads it.

`ChunkBudget` keeps prompts from delaying the trees of other sequences. Knows texts, blocks and measured
times; does not know models or trees.
"""

from collections.abc import Callable, Mapping, Sequence

from ssd.draft.server.kv import KvBlocks
from ssd.draft.server.session import DraftSession, Ledger
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Tables
from ssd.moving_average import MovingAverage

_CHUNK_SECONDS = 0.02
"""About the time of a verification: a tree that has grown for two rounds still has nodes after that time."""
_LEAST = 256
"""Tokens of a chunk: with fewer, a GPU would mostly read weights."""
_MOST_OWED = 5.0
"""Chunks' times that are owed at most: the first chunk may have waited for a kernel to be compiled."""
_WEIGHT = 0.5
"""Weight of the newest chunk in the time of a token."""


class ChunkBudget:
    """How many prompt tokens the next step may read.

    While other sequences grow, a chunk takes about `_CHUNK_SECONDS` by what earlier ones took, and after it
    steps without prompts get as much time as it took.
    """

    def __init__(self, most: int) -> None:
        self._most, self._least = most, min(most, _LEAST)
        self._seconds_per_token = MovingAverage(_WEIGHT)
        self._owed = 0.0
        """Seconds of steps without prompts before the next chunk."""

    def tokens(self, *, others_grow: bool) -> int:
        if not others_grow:
            return self._most
        if self._owed > 0:
            return 0
        seconds = self._seconds_per_token.value
        fitting = int(_CHUNK_SECONDS / seconds) if seconds else 0
        return max(self._least, min(fitting, self._most))

    def seconds_for(self, num_tokens: int) -> float:
        """About how long a chunk of so many tokens takes; 0 where none was measured yet."""
        return num_tokens * self._seconds_per_token.value

    def note_launch(self) -> None:
        """A chunk is in flight: how long it takes is not known before its end."""
        self._owed = float("inf")

    def note_end(self, num_tokens: int, seconds: float, usual: float) -> None:
        """A step has ended that read this many prompt tokens. `usual`: seconds of a step without any."""
        if num_tokens:
            took = min(max(0.0, seconds - usual), _MOST_OWED * _CHUNK_SECONDS)
            self._owed = took
            self._seconds_per_token.note(took / num_tokens)
        else:
            self._owed = max(0.0, self._owed - seconds)


class Prefill:
    def __init__(
        self,
        sessions: Mapping[int, DraftSession],
        kv_blocks: KvBlocks,
        ledger: Ledger,
        tables: Tables,
        divide: Callable[[int, set[str]], dict[str, int]],
    ) -> None:
        """`sessions`: by row, the oldest first.

        `divide`: how many of a step's prompt tokens each of these tenants gets.
        """
        self._sessions, self._kv_blocks, self._ledger, self._divide = sessions, kv_blocks, ledger, divide
        self._tables = tables
        self.unread: set[int] = set()
        """Rows of sessions whose text has too many unread tokens to be read by rows of a step."""

    def choose(self, most: int) -> list[PrefillChunk]:
        """Chunks of at most that many tokens for the next step. Marks them as read.

        A text's last token is left to the step's rows: its logits are needed.
        """
        lacking = self._lacking()
        budgets = self._divide(most, {self._sessions[each].tenant for each in lacking})
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
        found = dict[int, int]()
        waiting = self.unread - self._kv_blocks.lacking.keys()
        for row, session in self._sessions.items():
            if row not in waiting or not self._ledger.may_grow(row):
                continue
            known = int(self._ledger.num_computed[row])
            adopted = self._kv_blocks.adopt(session, known)
            if adopted > known:
                self._set_computed(row, adopted)
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
        self._set_computed(row, start + count)
        tokens = session.tokens[start : start + count]
        return PrefillChunk(row, tokens, start, self._kv_blocks.of(session))

    def _set_computed(self, row: int, num_computed: int) -> None:
        self._tables.num_computed[row] = self._ledger.num_computed[row] = num_computed
