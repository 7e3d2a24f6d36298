"""Grows the trees of all sequences, one forward of the draft model a step: the host's side of a forest.

It keeps what is no table: texts, blocks, the order of outcomes, credit, and which prompts are read. Between
two steps it hands outcomes over; after one it makes frames of what became of the rows. Knows the draft's KV
blocks, not its model's insides; does not know sockets, or who asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from ssd.draft.forest.children import Told
from ssd.draft.forest.forest import Forest
from ssd.draft.forest.frames import Frames, NewNodes, new_nodes, numbered_frames, whole_tree
from ssd.draft.forest.given import GivenChildren, Run, find_runs, load_runs, needs_host
from ssd.draft.forest.ledger import CREDIT, Ledger, Longs
from ssd.draft.forest.planted import Planted
from ssd.draft.forest.tables import Moves, Rows, Tables
from ssd.draft.messages import Drawn, TreePart
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of a text that are read beside a step's rows; their logits are not wanted."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]


class ForestModel(Protocol):
    """The draft's model, whose KV memory has the arena of the trees."""

    def forward(self, rows: Rows, tables: Tables, readings: Sequence[Reading]) -> Tensor:
        """Logits of all rows; of padding, anything."""
        ...

    def move(self, moves: Moves) -> None: ...


class Children(Protocol):
    def of(self, logits: Tensor, tables: Tables, rows: Rows) -> Told: ...


@dataclass(frozen=True, slots=True)
class HostLimits:
    prefill_chunk: int = 128
    """Tokens of prompts read in one step."""
    max_model_len: int = 2048


class ForestGrower:
    def __init__(
        self,
        forest: Forest,
        model: ForestModel,
        children: Children,
        blocks: BlockManager,
        limits: HostLimits,
        *,
        head_tokens: Tensor | None = None,
    ) -> None:
        self._forest, self._model, self._children = forest, model, children
        self._blocks, self._limits = blocks, limits
        self._given = GivenChildren(forest.shape.children, head_tokens)
        self._planted: dict[int, Planted] = {}
        self._by_row: dict[int, int] = {}
        """The session of each row in use."""
        self._texts: dict[int, Planted] = {}
        """By row."""
        self._with_host: set[int] = set()
        """Sessions whose children depend on more than logits and noise."""
        self.ledger = Ledger(forest.shape.sequences)
        self._free = list(range(forest.shape.sequences, 0, -1))
        self._unread: set[int] = set()
        """Sessions whose text is too far behind to be read by rows."""
        self._uncovered: set[int] = set()
        """Sessions whose text has outgrown its blocks."""
        self._num_blocks: dict[int, int] = {}
        self._num_shared = np.zeros(forest.shape.sequences + 1, np.int64)
        """Full blocks of each row that others may find."""
        self._inbox: dict[int, list[int]] = {}
        """Of each session: tokens that are not applied yet."""
        self.is_starved = False
        """A text lacks the blocks to be read, and nobody else computes: somebody has to go."""

    @property
    def num_sessions(self) -> int:
        return len(self._planted)

    @property
    def kv_usage(self) -> float:
        return self._blocks.usage

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    def open(self, session_id: int, planted: Planted) -> None:
        """Takes a sequence in; OutOfBlocks or ValueError where it does not fit."""
        self._check_length(planted)
        if not self._free:
            raise OutOfBlocks("every row of the forest is taken")
        num_read = min(self._blocks.allocate(session_id, planted.tokens), len(planted.tokens) - 1)
        # The lowest: tables are looked at as far as they are in use.
        planted.enter(self.ledger, self._free.pop())
        self._planted[session_id], self._by_row[planted.row] = planted, session_id
        self._texts[planted.row] = planted
        is_given = needs_host(planted)
        if is_given:
            self._with_host.add(session_id)
        planted.plant(self._forest.tables, self._forest.shape, num_read=num_read, is_given=is_given)
        self._num_blocks[session_id] = self._num_shared[planted.row] = 0
        self._write_blocks(session_id)
        if num_read < len(planted.tokens) - 1:
            self._unread.add(session_id)
        self._forest.narrow(max(self._by_row))

    def close(self, session_id: int) -> None:
        if session_id in self._inbox:
            # It still teaches how good guesses are.
            self._apply()
        planted = self._planted.pop(session_id, None)
        if planted is None:
            return
        self._blocks.free(session_id)
        self._forest.tables.is_live[planted.row] = False
        self.ledger.clear(planted.row)
        del self._by_row[planted.row], self._texts[planted.row], self._num_blocks[session_id]
        self._with_host.discard(session_id)
        self._unread.discard(session_id)
        self._uncovered.discard(session_id)
        self._free.append(planted.row)
        self._free.sort(reverse=True)
        self._forest.narrow(max(self._by_row, default=0))

    def largest(self) -> int:
        """The session whose blocks would serve most others; of equals, the youngest."""
        return max(self._planted, key=lambda each: (len(self._blocks.block_table(each)), each))

    def advance(self, session_id: int, n: int, tokens: Sequence[int]) -> None:
        """Takes an outcome; ValueError where the sequence has outgrown the draft."""
        planted = self._planted[session_id]
        if session_id in self._inbox and n == self.ledger.n[planted.row] + 1:
            self._apply()
        if planted.goes_on(n, tokens):
            self._inbox[session_id] = list(tokens)
            self._check_length(planted)

    def full_frame(self, session_id: int) -> TreePart:
        self._apply()
        forest = self._forest
        found = whole_tree(forest.xp, forest.shape, forest.tables, self._planted[session_id].row)
        [(_row, part)] = self._framed(found, full=True).parts()
        return part

    def step(self) -> tuple[dict[int, TreePart], int]:
        """As `grow`, with the frames one by one, by session."""
        frames, num_rows = self.grow()
        return {self._by_row[row]: part for row, part in frames.parts()} if frames else {}, num_rows

    def grow(self) -> tuple[Frames | None, int]:
        """One forward; the new nodes of each tree it touched, and how many rows it had. 0: nothing to do."""
        forest = self._forest
        self._apply()
        self._cover()
        readings = self._choose_readings()
        self._say_who_is_live()
        forest.select()
        num_rows = int((forest.xp.told(forest.rows.sequence)[: forest.shape.num_rows] > 0).sum())
        if not num_rows and not readings:
            self.is_starved = bool(self._uncovered)
            return None, 0
        self.is_starved = False
        runs = self._lay_runs()
        logits = self._model.forward(forest.rows, forest.tables, [each for each, _ in readings])
        forest.attach(self._told(logits, runs))
        self._finish_reading(readings)
        num_rows += sum(len(each.tokens) for each in runs)
        num_rows += sum(len(each.tokens) for each, _ in readings)
        return self._framed(
            new_nodes(forest.xp.told(forest.fresh), forest.shape.children), full=False
        ), num_rows

    def check_integrity(self) -> None:
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != set(self._planted):
            raise RuntimeError("blocks are held by others than the open sequences")
        if sorted(self._free + list(self._by_row)) != list(range(1, self._forest.shape.sequences + 1)):
            raise RuntimeError("rows are neither free nor in use, or both")
        for row, session_id in self._by_row.items():
            if self._planted[session_id].row != row:
                raise RuntimeError(f"row {row} does not belong to the session that holds it")

    def _check_length(self, planted: Planted) -> None:
        if len(planted.tokens) + 2 > self._limits.max_model_len:
            raise ValueError(f"the draft's context ends at {self._limits.max_model_len} tokens")

    # Outcomes.

    def _apply(self) -> None:
        """Hands over what has arrived: as much of it at once as fits."""
        while self._inbox:
            forest, most = self._forest, self._forest.shape.outcome
            count = np.zeros(forest.shape.sequences + 1, np.int64)
            tokens = np.zeros((forest.shape.sequences + 1, most), np.int64)
            rest: dict[int, list[int]] = {}
            for session_id, said in self._inbox.items():
                row = self._planted[session_id].row
                self._make_room(session_id)
                count[row] = min(len(said), most)
                tokens[row, : count[row]] = said[:most]
                if len(said) > most:
                    rest[session_id] = said[most:]
            forest.xp.load(forest.inbox.count, count)
            forest.xp.load(forest.inbox.tokens, tokens)
            self._inbox = rest
            forest.apply()
            self._model.move(forest.moves)
            self._note_progress(count)

    def _make_room(self, session_id: int) -> None:
        """Blocks for the text; without them nothing can be moved into it, and its tree is lost."""
        planted, tables = self._planted[session_id], self._forest.tables
        row = planted.row
        if len(planted.tokens) <= self.ledger.covered[row]:
            return
        try:
            self._blocks.grow(session_id, len(planted.tokens))
        except OutOfBlocks:
            self._uncovered.add(session_id)
            # A text that is not read to its end has no tree.
            tables.num_read[row] = min(int(tables.num_read[row]), int(tables.length[row]) - 1)
        else:
            self._write_blocks(session_id)

    def _cover(self) -> None:
        for session_id in list(self._uncovered):
            try:
                self._blocks.grow(session_id, len(self._planted[session_id].tokens))
            except OutOfBlocks:
                continue
            self._uncovered.discard(session_id)
            self._write_blocks(session_id)

    def _write_blocks(self, session_id: int) -> None:
        row, table = self._planted[session_id].row, self._blocks.block_table(session_id)
        for place in range(self._num_blocks[session_id], len(table)):
            self._forest.tables.blocks[row, place] = table[place]
        self._num_blocks[session_id] = len(table)
        self.ledger.covered[row] = self._blocks.num_covered(session_id)

    def _note_progress(self, count: Longs) -> None:
        """Texts that go on: what of them is read may be shared, and what lies too far back is read apart."""
        forest = self._forest
        num_read = forest.xp.told(forest.tables.num_read)
        is_far = forest.xp.told(forest.tables.length) - num_read > forest.shape.ring
        for row in np.flatnonzero((count > 0) & is_far).tolist():
            self._unread.add(self._by_row[row])
        num_full = num_read // forest.shape.block
        for row in np.flatnonzero((count > 0) & (num_full > self._num_shared)).tolist():
            session_id, read = self._by_row[row], int(num_read[row])
            self._blocks.commit(session_id, self._planted[session_id].tokens, read, read)
            self._num_shared[row] = num_full[row]
        for session_id in self._with_host:
            planted = self._planted[session_id]
            if planted.drawn_from:
                planted.forget_drawn(int(forest.tables.root_id[planted.row]))

    # Steps.

    def _say_who_is_live(self) -> None:
        is_held = self.ledger.is_held
        is_held[:] = False
        for session_id in self._unread | self._uncovered:
            is_held[self._planted[session_id].row] = True
        self._forest.xp.load(self._forest.tables.is_live, self.ledger.live())

    def _lay_runs(self) -> list[Run]:
        forest = self._forest
        runs = find_runs(forest, self._texts) if forest.shape.lookup else []
        load_runs(forest, runs)
        if forest.xp.is_fixed or runs:
            forest.lay_runs()
        return runs

    def _told(self, logits: Tensor, runs: Sequence[Run]) -> Told:
        """What follows each row, by its logits; where a text's parameters look at its tokens, by the host."""
        forest = self._forest
        told = self._children.of(logits, forest.tables, forest.rows)
        if self._with_host:
            host = forest.xp.told(told[0]), forest.xp.told(told[1])
            self._given.write(forest, self._texts, logits, host, runs)
        return told

    def _choose_readings(self) -> list[tuple[Reading, int]]:
        """Chunks of texts that are far behind, all but their last token; the shortest first."""
        chosen: list[tuple[Reading, int]] = []
        if not self._unread:
            return chosen
        num_read, budget = self._forest.xp.told(self._forest.tables.num_read), self._limits.prefill_chunk
        waiting = [each for each in self._unread if self._may_read(each)]
        lacking = {
            each: len(self._planted[each].tokens) - 1 - int(num_read[self._planted[each].row])
            for each in waiting
        }
        for session_id in sorted(waiting, key=lambda each: (lacking[each], each)):
            planted = self._planted[session_id]
            start = int(num_read[planted.row])
            tokens = planted.tokens[start : start + min(budget, lacking[session_id])]
            budget -= len(tokens)
            if tokens:
                chosen.append((Reading(tokens, start, self._blocks.block_table(session_id)), session_id))
            if len(tokens) == lacking[session_id]:
                self._unread.discard(session_id)
            self._forest.tables.num_read[planted.row] = start + len(tokens)
        return chosen

    def _may_read(self, session_id: int) -> bool:
        row, ledger = self._planted[session_id].row, self.ledger
        has_credit = ledger.sent[row] - ledger.arrived[row] < CREDIT
        return bool(has_credit and not ledger.is_torn[row]) and session_id not in self._uncovered

    def _finish_reading(self, readings: Sequence[tuple[Reading, int]]) -> None:
        for reading, session_id in readings:
            num_read = reading.start + len(reading.tokens)
            self._blocks.commit(session_id, self._planted[session_id].tokens, num_read, num_read)

    def _framed(self, found: NewNodes, *, full: bool) -> Frames:
        frames = numbered_frames(found, self.ledger, full=full)
        if not self._with_host:
            return frames
        drawn = [each for session_id in self._with_host for each in self._drawn_of(session_id, found)]
        return replace(frames, drawn=drawn)

    def _drawn_of(self, session_id: int, found: NewNodes) -> list[tuple[int, Drawn]]:
        planted = self._planted[session_id]
        if not planted.drawn_from:
            return []
        mine = (found.rows == planted.row).repeat(found.number)
        return [(planted.row, each) for each in planted.drawn(dict.fromkeys(found.nodes[1][mine].tolist()))]
