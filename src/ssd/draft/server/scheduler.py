"""Grows the trees of all sequences, one forward of the draft model a step: the host's side of a forest.

It keeps what is no table: texts, blocks, the order of outcomes, credit, and which prompts are read. Between
two steps it hands outcomes over; after one it makes frames of what became of the rows. Knows the draft's KV
blocks, not its model's insides; does not know sockets, or who asked.
"""

import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import neg

import numpy as np
from torch import Tensor

from ssd.draft.protocol.messages import Drawn
from ssd.draft.server.admission import Admission
from ssd.draft.server.frames import FrameBatch, NewNodes, new_nodes, numbered_frames, whole_tree
from ssd.draft.server.host_choices import ChildDrawer, TokenRun, find_runs, load_runs
from ssd.draft.server.kv_blocks import KvBlocks
from ssd.draft.server.ledger import Ledger, Longs, RoundTimer
from ssd.draft.server.logit_edits import EditedRows, LogitEdits, TextEdits, edits_of
from ssd.draft.server.prefill import Prefill
from ssd.draft.server.session import DraftSession
from ssd.draft.server.tenants import RowAccounting, Tenants
from ssd.draft.tree.children import ChildChooser, ChosenChildren
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import ForestModel
from ssd.draft.tree.tables import TENANT_CELLS
from ssd.kvcache.block_manager import BlockManager


@dataclass(frozen=True, slots=True)
class HostLimits:
    prefill_chunk: int = 128
    """Tokens of prompts read in one step."""
    max_model_len: int = 2048
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants, by name; of others 1."""


class OutOfTrees(Exception):  # noqa: N818 - exhaustion is a state here, not an error
    """Every tree is taken. Expected under load; nothing has been changed."""


class DraftScheduler:
    def __init__(
        self,
        forest: Forest,
        model: ForestModel,
        children: ChildChooser,
        blocks: BlockManager,
        limits: HostLimits,
        *,
        head_tokens: Tensor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forest, self._model, self._children = forest, model, children
        self._limits = limits
        self._drawer = ChildDrawer(forest.shape.children, head_tokens)
        self._logit_edits = LogitEdits(head_tokens)
        self._sessions: dict[int, DraftSession] = {}
        self._by_row: dict[int, int] = {}
        """The session of each row in use."""
        self._texts: dict[int, DraftSession] = {}
        """By row."""
        self._edited: dict[int, TextEdits] = {}
        """By row: texts whose parameters depend on tokens."""
        self._drawing: set[int] = set()
        """Sessions whose guesses are drawn."""
        self._truncating: set[int] = set()
        """Sessions that cut off tokens."""
        self.ledger = Ledger(forest.shape.sequences)
        self._round_timer, self._clock = RoundTimer(forest.shape.sequences, clock), clock
        self._kv_blocks = KvBlocks(forest, blocks, self.ledger)
        self.tenants = Tenants(forest.shape.sequences, limits.weights)
        self._accounting = RowAccounting(forest, self.tenants)
        self._prefill = Prefill(
            forest, self._sessions, self._kv_blocks, self.tenants, self.ledger, limits.prefill_chunk
        )
        self.admission = Admission(self._sessions, self._kv_blocks, self.ledger, self.tenants)
        self._free = list(range(forest.shape.sequences, 0, -1))
        self._pending: dict[int, list[int]] = {}
        """Of each session: tokens that are not applied yet."""
        self.is_starved = False
        """A text lacks the blocks to be read, and nobody else computes: somebody has to go."""

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def kv_usage(self) -> float:
        return self._kv_blocks.usage

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    @property
    def most_sessions(self) -> int:
        return self._forest.shape.sequences

    def open(self, session_id: int, session: DraftSession) -> None:
        """Takes a sequence in; OutOfTrees, OutOfBlocks or ValueError where it does not fit."""
        self._check_length(session)
        if not self.has_tree:
            raise OutOfTrees
        num_read = self._kv_blocks.allocate(session_id, session)
        # The lowest: tables are looked at as far as they are in use.
        session.enter(self.ledger, self._free.pop())
        self._round_timer.enter(session.row)
        self._sessions[session_id], self._by_row[session.row] = session, session_id
        self._texts[session.row] = session
        self.tenants.enter(session.row, session.tenant)
        self._note_parameters(session_id, session)
        session.write_to(
            self._forest.tables,
            self._forest.shape,
            num_read=num_read,
            is_drawn=session.draws,
            calibration_part=self._calibration_part(session.tenant),
        )
        self._kv_blocks.enter(session_id, session)
        if num_read < len(session.tokens) - 1:
            self._prefill.unread.add(session_id)
        self._forest.narrow(max(self._by_row))

    def _note_parameters(self, session_id: int, session: DraftSession) -> None:
        if session.draws:
            self._drawing.add(session_id)
        elif (edits := edits_of(session)) is not None:
            self._edited[session.row] = edits
        if session.params.truncated:
            self._truncating.add(session_id)

    def _calibration_part(self, tenant: str) -> int:
        """The number of a tenant's counts; one that had none begins with the model's own word."""
        calibration_part, is_new = self.tenants.calibration_part(tenant)
        if is_new:
            self._forest.tables.counts[
                :, calibration_part * TENANT_CELLS : (calibration_part + 1) * TENANT_CELLS
            ] = 0.0
        return calibration_part

    def close(self, session_id: int) -> None:
        if session_id in self._pending:
            # It still teaches how good guesses are.
            self._apply()
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._kv_blocks.free(session_id)
        self._forest.tables.is_live[session.row] = False
        self.ledger.clear(session.row)
        self.tenants.leave(session.row, session.tenant)
        del self._by_row[session.row], self._texts[session.row]
        self._drawing.discard(session_id)
        self._edited.pop(session.row, None)
        self._truncating.discard(session_id)
        self._prefill.unread.discard(session_id)
        insort(self._free, session.row, key=neg)
        self._forest.narrow(max(self._by_row, default=0))

    @property
    def has_tree(self) -> bool:
        """For one more sequence."""
        return bool(self._free)

    def advance(self, session_id: int, n: int, tokens: Sequence[int]) -> None:
        """Takes an outcome; ValueError where the sequence has outgrown the draft, and has to be closed."""
        session = self._sessions[session_id]
        if session_id in self._pending and n == self.ledger.n[session.row] + 1:
            self._apply()
        if session.goes_on(n, tokens):
            # Before it reaches the tables, which have no room for more.
            self._check_length(session)
            self._round_timer.note_outcome(session.row)
            self._pending[session_id] = list(tokens)

    def full_frame(self, session_id: int) -> FrameBatch:
        """All that is known of one tree."""
        self._apply()
        forest = self._forest
        found = whole_tree(forest.xp, forest.shape, forest.tables, self._sessions[session_id].row)
        return self._framed(found, full=True)

    def grow(self) -> tuple[FrameBatch | None, int]:
        """One forward; the new nodes of each tree it touched, and how many rows it had. 0: nothing to do."""
        forest, started = self._forest, self._clock()
        self._apply()
        self._kv_blocks.cover_lacking()
        chunks = self._prefill.choose()
        self._say_how_it_stands()
        self._accounting.load()
        forest.select()
        num_rows = int((forest.xp.to_host(forest.rows.sequence)[: forest.shape.num_rows] > 0).sum())
        if not num_rows and not chunks:
            # Whoever waited for others need not: nobody has anything to do.
            self.tenants.rest()
            chunks = self._prefill.choose()
        if not num_rows and not chunks:
            self.is_starved = any(self.ledger.may_grow(each.row) for each in self._kv_blocks.lacking.values())
            return None, 0
        self.is_starved = False
        runs = self._lay_runs()
        waiting = [self._sessions[each].row for each in self._prefill.unread]
        self._accounting.settle(runs, [(each.row, len(each.tokens)) for each, _ in chunks], waiting)
        logits = self._model.forward(forest.rows, forest.tables, [each for each, _ in chunks])
        forest.attach(self._choose_children(logits, runs))
        self._prefill.finish(chunks)
        num_rows += sum(len(each.tokens) for each in runs)
        num_rows += sum(len(each.tokens) for each, _ in chunks)
        frames = self._framed(new_nodes(forest.xp.to_host(forest.fresh), forest.shape.children), full=False)
        if not chunks:
            self._round_timer.note_step(self._clock() - started)
        return frames, num_rows

    def check_integrity(self) -> None:
        self._kv_blocks.check_integrity(self._sessions)
        if sorted(self._free + list(self._by_row)) != list(range(1, self._forest.shape.sequences + 1)):
            raise RuntimeError("rows are neither free nor in use, or both")
        self.tenants.check_integrity({row: each.tenant for row, each in self._texts.items()})
        if np.flatnonzero(self.ledger.is_open).tolist() != sorted(self._by_row):
            raise RuntimeError("the ledger has other rows than are in use")
        for row, session_id in self._by_row.items():
            if self._sessions[session_id].row != row:
                raise RuntimeError(f"row {row} does not belong to the session that holds it")
        self._forest.check_integrity()

    def _check_length(self, session: DraftSession) -> None:
        if len(session.tokens) + 2 > self._limits.max_model_len:
            raise ValueError(f"the draft's context ends at {self._limits.max_model_len} tokens")

    # Outcomes.

    def _apply(self) -> None:
        """Hands over what has arrived: as much of it at once as fits."""
        while self._pending:
            forest, most = self._forest, self._forest.shape.outcome
            parts, rest = dict[int, list[int]](), dict[int, list[int]]()
            for session_id, said in self._pending.items():
                row = self._sessions[session_id].row
                if not self._kv_blocks.cover(session_id, self._sessions[session_id]):
                    # Nothing can be moved into the text: its tree is lost, and what it gained is read.
                    forest.tables.is_used[row] = False
                parts[row] = said[:most]
                if len(said) > most:
                    rest[session_id] = said[most:]
            count = self._load_outcomes(parts)
            self._pending = rest
            forest.apply()
            self._model.move(forest.moves)
            self._note_progress(count)

    def _load_outcomes(self, parts: Mapping[int, Sequence[int]]) -> Longs:
        """Tokens by row, into the inbox; returns of each row how many."""
        forest, shape = self._forest, self._forest.shape
        count = np.zeros(shape.sequences + 1, np.int64)
        tokens = np.zeros((shape.sequences + 1, shape.outcome), np.int64)
        count[list(parts)] = [len(chunk) for chunk in parts.values()]
        is_said = np.arange(shape.outcome) < count[:, None]
        tokens[is_said] = [token for row in sorted(parts) for token in parts[row]]
        forest.xp.load(forest.outcomes.count, count)
        forest.xp.load(forest.outcomes.tokens, tokens)
        return count

    def _note_progress(self, count: Longs) -> None:
        """Texts that go on: what of them is read may be shared, and what lies too far back is read apart."""
        forest = self._forest
        num_read = forest.xp.to_host(forest.tables.num_read)
        is_far = forest.xp.to_host(forest.tables.length) - num_read > forest.shape.ring
        for row in np.flatnonzero((count > 0) & is_far).tolist():
            self._prefill.unread.add(self._by_row[row])
        for row in self._kv_blocks.are_full(num_read * (count > 0)).tolist():
            session_id = self._by_row[row]
            self._kv_blocks.share(session_id, self._sessions[session_id], int(num_read[row]))
        for session_id in self._drawing:
            session = self._sessions[session_id]
            if session.drawn_from:
                session.forget_drawn(int(forest.tables.root_id[session.row]))

    # Steps.

    def _say_how_it_stands(self) -> None:
        """Who may grow, and in how many steps."""
        is_held = self.ledger.is_held
        is_held[:] = False
        for session_id in self._prefill.unread | self._kv_blocks.lacking.keys():
            is_held[self._sessions[session_id].row] = True
        forest = self._forest
        forest.xp.load(forest.tables.is_live, self.ledger.live())
        forest.xp.load(forest.tables.steps_left, self._round_timer.steps_left())

    def _lay_runs(self) -> list[TokenRun]:
        forest = self._forest
        runs = find_runs(forest, self._texts) if forest.shape.lookup else []
        load_runs(forest, runs)
        if forest.xp.is_fixed or runs:
            forest.lay_runs()
        return runs

    def _choose_children(self, logits: Tensor, runs: Sequence[TokenRun]) -> ChosenChildren:
        """What follows each row, by its logits and parameters; where guesses are drawn, by the host."""
        forest = self._forest
        forest.truncates = bool(self._truncating)
        if self._edited:
            self._logit_edits.apply(logits, EditedRows(forest, self._edited))
        chosen = self._children.of(logits, forest.tables, forest.rows)
        if self._drawing:
            host = forest.xp.to_host(chosen[0]), forest.xp.to_host(chosen[1])
            self._drawer.write(forest, self._texts, logits, host, runs)
            # On a device that was a copy.
            for table, values in zip(chosen, host, strict=True):
                forest.xp.load(table, values)
        return chosen

    def _framed(self, found: NewNodes, *, full: bool) -> FrameBatch:
        frames = numbered_frames(found, self.ledger, full=full)
        if not self._drawing:
            return frames
        drawn = [each for session_id in self._drawing for each in self._drawn_of(session_id, found)]
        return replace(frames, drawn=drawn)

    def _drawn_of(self, session_id: int, found: NewNodes) -> list[tuple[int, Drawn]]:
        session = self._sessions[session_id]
        if not session.drawn_from:
            return []
        mine = (found.rows == session.row).repeat(found.number)
        return [(session.row, each) for each in session.drawn(dict.fromkeys(found.nodes[1][mine].tolist()))]
