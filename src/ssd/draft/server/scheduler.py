"""Grows the trees of all sessions: one forward of the draft model per step.

The scheduler keeps what is not in the tables: texts, KV blocks, the order of outcomes, credit (how many
frames may be unacknowledged), and prefill. A step is: apply outcomes, choose prefill chunks, select rows, add
runs (guesses by n-gram), forward, choose children, attach them, and make frames of the new nodes. Knows the
draft's KV blocks and its model's interface; does not know sockets or peers.
"""

import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import neg

import numpy as np
from torch import Tensor

from ssd.draft.protocol.messages import Drawn
from ssd.draft.server.frames import FrameBatch, NewNodes, new_nodes, numbered_frames, whole_tree
from ssd.draft.server.host_choices import (
    ChildDrawer,
    EditedRows,
    LogitEdits,
    Paths,
    TextEdits,
    Texts,
    edits_of,
)
from ssd.draft.server.kv import KvBlocks, Prefill
from ssd.draft.server.session import DraftSession, Ledger, Longs, RoundTimer
from ssd.draft.server.tenants import Admission, RowAccounting, Tenants
from ssd.draft.tree.children import ChildChooser, ChosenChildren
from ssd.draft.tree.forest import Forest, TokenRun
from ssd.draft.tree.model import ForestModel
from ssd.draft.tree.tables import TENANT_CELLS
from ssd.kvcache.block_manager import BlockManager


@dataclass(frozen=True, slots=True)
class HostLimits:
    prefill_chunk: int = 128
    """Prompt tokens that are prefilled in one step, at most."""
    max_model_len: int = 2048
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of tenants by name; 1 for those not named."""


class OutOfTrees(Exception):  # noqa: N818 - exhaustion is a state here, not an error
    """All trees are in use. Expected under load; nothing has been changed."""


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
        """By row of the tables, the oldest first."""
        self._edited: dict[int, TextEdits] = {}
        """By row: how to edit the logits of sessions with penalties, bias, bad words or a minimum length."""
        self._drawing: set[int] = set()
        """Rows of sessions that use ratio acceptance."""
        self._truncating: set[int] = set()
        """Rows of sessions with top_k, top_p or min_p."""
        self.ledger = Ledger(forest.shape.sequences)
        self._round_timer, self._clock = RoundTimer(forest.shape.sequences, clock), clock
        self._kv_blocks = KvBlocks(forest, blocks, self.ledger)
        self.tenants = Tenants(forest.shape.sequences, limits.weights)
        self._accounting = RowAccounting(forest, self.tenants)
        self._prefill = Prefill(
            forest,
            self._sessions,
            self._kv_blocks,
            self.ledger,
            partial(self.tenants.prompt_tokens, limits.prefill_chunk),
        )
        self.admission = Admission(self._sessions, self._kv_blocks, self.ledger, self.tenants)
        self._free_rows = list(range(forest.shape.sequences, 0, -1))
        self._pending: dict[int, list[int]] = {}
        """By row: tokens of an outcome that are not applied yet."""
        self.is_starved = False
        """No step is possible because sessions lack KV blocks: the caller must close a session."""

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

    def open(self, session: DraftSession) -> None:
        """Opens a session and gives it a row. Raises OutOfTrees, OutOfBlocks or ValueError if that fails."""
        self._check_length(session)
        if not self.has_free_tree:
            raise OutOfTrees
        # The lowest row: steps compute all rows up to the highest one in use.
        num_computed = self._kv_blocks.allocate(self._free_rows[-1], session)
        session.enter(self.ledger, self._free_rows.pop())
        self._round_timer.enter(session.row)
        self._sessions[session.row] = session
        self.tenants.enter(session.row, session.tenant)
        self._note_parameters(session)
        session.write_to(
            self._forest.tables,
            self._forest.shape,
            num_computed=num_computed,
            is_drawn=session.draws,
            calibration_part=self._calibration_part(session.tenant),
        )
        self._kv_blocks.enter(session)
        if num_computed < len(session.tokens) - 1:
            self._prefill.unread.add(session.row)
        self._forest.narrow(max(self._sessions))

    def _note_parameters(self, session: DraftSession) -> None:
        if session.draws:
            self._drawing.add(session.row)
        elif (edits := edits_of(session)) is not None:
            self._edited[session.row] = edits
        if session.params.truncated:
            self._truncating.add(session.row)

    def _calibration_part(self, tenant: str) -> int:
        """The index of the tenant's part of the calibration counts; clears that part if it is new."""
        calibration_part, is_new = self.tenants.calibration_part(tenant)
        if is_new:
            self._forest.tables.counts[
                :, calibration_part * TENANT_CELLS : (calibration_part + 1) * TENANT_CELLS
            ] = 0.0
        return calibration_part

    def close(self, session: DraftSession) -> None:
        row = session.row
        if self._sessions.get(row) is not session:
            return
        if row in self._pending:
            # Its last outcome still counts for the calibration.
            self._apply()
        del self._sessions[row]
        self._kv_blocks.free(session)
        self._forest.tables.is_live[row] = False
        self.ledger.clear(row)
        self.tenants.leave(row, session.tenant)
        self._drawing.discard(row)
        self._edited.pop(row, None)
        self._truncating.discard(row)
        self._prefill.unread.discard(row)
        insort(self._free_rows, row, key=neg)
        self._forest.narrow(max(self._sessions, default=0))

    @property
    def has_free_tree(self) -> bool:
        """Whether there is a tree for one more session."""
        return bool(self._free_rows)

    def advance(self, session: DraftSession, n: int, tokens: Sequence[int]) -> None:
        """Takes the `n`-th outcome of a session if it is the next one; a later call applies it to the tree.

        Raises ValueError if the text outgrows the draft's context: then close the session.
        """
        if session.row in self._pending and n == self.ledger.n[session.row] + 1:
            self._apply()
        if session.goes_on(n, tokens):
            # Check before the outcome reaches the tables, which have no room for a longer text.
            self._check_length(session)
            self._round_timer.note_outcome(session.row)
            self._pending[session.row] = list(tokens)

    def full_frame(self, session: DraftSession) -> FrameBatch:
        """A frame with the whole tree of a session."""
        self._apply()
        forest = self._forest
        found = whole_tree(forest.xp, forest.shape, forest.tables, session.row)
        return self._framed(found, full=True)

    def grow(self) -> tuple[FrameBatch | None, int]:
        """Runs one step. Returns the frames of new nodes and the number of rows; 0: there was no work."""
        forest, started = self._forest, self._clock()
        self._apply()
        self._kv_blocks.cover_lacking()
        chunks = self._prefill.choose()
        self._load_limits()
        self._accounting.load()
        forest.select()
        num_rows = int((forest.xp.to_host(forest.rows.sequence)[: forest.shape.num_rows] > 0).sum())
        if not num_rows and not chunks:
            # Tenants that owe rows may prefill now: no other tenant has work.
            self.tenants.reset()
            chunks = self._prefill.choose()
        if not num_rows and not chunks:
            self.is_starved = any(self.ledger.may_grow(each.row) for each in self._kv_blocks.lacking.values())
            return None, 0
        self.is_starved = False
        runs = self._lay_runs()
        prefilled = [(each.row, len(each.tokens)) for each in chunks]
        self._accounting.settle(runs, prefilled, list(self._prefill.unread))
        logits = self._model.forward(forest.rows, forest.tables, chunks)
        forest.attach(self._choose_children(logits, runs))
        self._prefill.finish(chunks)
        num_rows += sum(len(each.tokens) for each in runs)
        num_rows += sum(len(each.tokens) for each in chunks)
        frames = self._framed(new_nodes(forest.xp.to_host(forest.fresh), forest.shape.children), full=False)
        if not chunks:
            self._round_timer.note_step(self._clock() - started)
        return frames, num_rows

    def check_integrity(self) -> None:
        self._kv_blocks.check_integrity(self._sessions)
        if sorted([*self._free_rows, *self._sessions]) != list(range(1, self._forest.shape.sequences + 1)):
            raise RuntimeError("a row is both free and in use, or neither")
        self.tenants.check_integrity({row: each.tenant for row, each in self._sessions.items()})
        if np.flatnonzero(self.ledger.is_open).tolist() != sorted(self._sessions):
            raise RuntimeError("the rows that are open in the ledger are not those in use")
        for row, session in self._sessions.items():
            if session.row != row:
                raise RuntimeError(f"row {row} does not belong to the session that holds it")
        self._forest.check_integrity()

    def _check_length(self, session: DraftSession) -> None:
        if len(session.tokens) + 2 > self._limits.max_model_len:
            raise ValueError(f"the draft's context ends at {self._limits.max_model_len} tokens")

    # Outcomes.

    def _apply(self) -> None:
        """Applies pending outcomes to the trees, in parts where one is longer than the tables allow."""
        while self._pending:
            forest, most = self._forest, self._forest.shape.outcome
            parts, rest = dict[int, list[int]](), dict[int, list[int]]()
            for row, tokens in self._pending.items():
                if not self._kv_blocks.cover(self._sessions[row]):
                    # Keys cannot be moved into missing blocks: drop the tree and read the new tokens later.
                    forest.tables.is_used[row] = False
                parts[row] = tokens[:most]
                if len(tokens) > most:
                    rest[row] = tokens[most:]
            count = self._load_outcomes(parts)
            self._pending = rest
            forest.apply()
            self._model.move(forest.moves)
            self._note_progress(count)

    def _load_outcomes(self, parts: Mapping[int, Sequence[int]]) -> Longs:
        """Writes tokens, by row, to the outcome table. Returns the number of tokens of each row."""
        forest, shape = self._forest, self._forest.shape
        count = np.zeros(shape.sequences + 1, np.int64)
        tokens = np.zeros((shape.sequences + 1, shape.outcome), np.int64)
        count[list(parts)] = [len(chunk) for chunk in parts.values()]
        is_token = np.arange(shape.outcome) < count[:, None]
        tokens[is_token] = [token for row in sorted(parts) for token in parts[row]]
        forest.xp.load(forest.outcomes.count, count)
        forest.xp.load(forest.outcomes.tokens, tokens)
        return count

    def _note_progress(self, count: Longs) -> None:
        """After outcomes: shares full KV blocks, and hands texts with many unread tokens to prefill."""
        forest = self._forest
        num_computed = forest.xp.to_host(forest.tables.num_computed)
        is_far = forest.xp.to_host(forest.tables.length) - num_computed > forest.shape.ring
        for row in np.flatnonzero((count > 0) & is_far).tolist():
            self._prefill.unread.add(row)
        for row in self._kv_blocks.are_full(num_computed * (count > 0)).tolist():
            self._kv_blocks.share(self._sessions[row], int(num_computed[row]))
        for row in self._drawing:
            session = self._sessions[row]
            if session.drawn_from:
                session.forget_drawn(int(forest.tables.root_id[row]))

    # Steps.

    def _load_limits(self) -> None:
        """Writes to the tables which sequences may grow, and how many steps are left in their round."""
        is_held = self.ledger.is_held
        is_held[:] = False
        for row in self._prefill.unread | self._kv_blocks.lacking.keys():
            is_held[row] = True
        forest = self._forest
        forest.xp.load(forest.tables.is_live, self.ledger.live())
        forest.xp.load(forest.tables.steps_left, self._round_timer.steps_left())

    def _lay_runs(self) -> list[TokenRun]:
        """Finds runs (`find_runs`), and adds a row to the step for each of their tokens."""
        forest = self._forest
        runs = find_runs(forest, self._sessions) if forest.shape.lookup else []
        forest.load_runs(runs)
        if forest.xp.is_fixed or runs:
            forest.lay_runs()
        return runs

    def _choose_children(self, logits: Tensor, runs: Sequence[TokenRun]) -> ChosenChildren:
        """The children of each row, by its logits and parameters.

        Children of sessions with ratio acceptance are drawn on the host.
        """
        forest = self._forest
        forest.truncates = bool(self._truncating)
        if self._edited:
            self._logit_edits.apply(logits, EditedRows(forest, self._edited))
        chosen = self._children.of(logits, forest.tables, forest.rows)
        if self._drawing:
            host = forest.xp.to_host(chosen[0]), forest.xp.to_host(chosen[1])
            self._drawer.write(forest, self._sessions, logits, host, runs)
            # On a GPU `host` is a copy, so write it back.
            for table, values in zip(chosen, host, strict=True):
                forest.xp.load(table, values)
        return chosen

    def _framed(self, found: NewNodes, *, full: bool) -> FrameBatch:
        frames = numbered_frames(found, self.ledger, full=full)
        if not self._drawing:
            return frames
        drawn = [each for row in self._drawing for each in self._drawn_of(row, found)]
        return replace(frames, drawn=drawn)

    def _drawn_of(self, row: int, found: NewNodes) -> list[tuple[int, Drawn]]:
        session = self._sessions[row]
        if not session.drawn_from:
            return []
        mine = (found.rows == row).repeat(found.number)
        return [(row, each) for each in session.drawn(dict.fromkeys(found.nodes[1][mine].tolist()))]


def find_runs(forest: Forest, texts: Texts) -> list[TokenRun]:
    """Finds at most `lookup` tokens of runs, below roots that the step reads, then below best nodes."""
    xp, rows, shape = forest.xp, forest.rows, forest.shape
    attaches, is_read, home = xp.to_host(rows.attaches), xp.to_host(rows.is_read), xp.to_host(rows.home)
    own = shape.num_rows if xp.is_fixed else len(home)
    is_first = is_read[:own] | (xp.to_host(rows.start)[:own] == np.arange(own))
    firsts = np.flatnonzero(attaches[:own] & is_first)
    num_taken = np.bincount(xp.to_host(rows.sequence)[:own], attaches[:own] & ~is_read[:own])
    is_used = xp.to_host(forest.tables.is_used)
    budget, found, paths = shape.lookup, list[TokenRun](), Paths(forest)
    for row in _in_turn(forest, firsts):
        if not budget:
            break
        sequence = int(home[row])
        session = texts[sequence]
        # Sessions with ratio acceptance get no runs: a frame's time of arrival must not depend on its tokens.
        if session.draws:
            continue
        tokens = session.guess(paths.to(row), budget)
        if tokens:
            room = shape.slots - int(is_used[sequence, : shape.slots].sum() + num_taken[sequence])
            tokens = tokens[: max(0, room)]
        if tokens:
            found.append(TokenRun(row, tokens))
            budget -= len(tokens)
    return found


def _in_turn(forest: Forest, firsts: Longs) -> list[int]:
    """Rows that runs may start from, in the order in which they are tried."""
    if len(firsts) > 1:
        xp, rows = forest.xp, forest.rows
        home, keys = xp.to_host(rows.home)[firsts], xp.to_host(rows.key)[firsts]
        # New texts come last: their prompts are read in this step.
        lengths = xp.to_host(forest.tables.is_new)[home] * xp.to_host(forest.tables.length)[home]
        firsts = firsts[np.lexsort((keys, lengths, ~xp.to_host(rows.is_read)[firsts]))]
    found: list[int] = firsts.tolist()
    return found
