"""Grows the trees of all sessions: one forward of the draft model per step.

The scheduler keeps what is not in the tables: texts, KV blocks, the order of outcomes, credit (how many
frames may be unacknowledged), and prefill. A step is launched with what the host knows (outcomes, prefill
chunks, who may grow) and collected later: on a GPU after the next one was launched. So the host's numbers may
be a step old, and a frame says of which outcome its nodes are. Knows the draft's KV blocks and how to launch
a step (steps.py); does not know sockets, peers or models.
"""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import neg

import numpy as np

from ssd.draft.protocol.messages import AskOpen
from ssd.draft.server.frames import (
    FrameBatch,
    NewNodes,
    SessionsAt,
    new_nodes,
    numbered_frames,
    whole_tree,
)
from ssd.draft.server.kv import KvBlocks
from ssd.draft.server.offers import Offers, Owner
from ssd.draft.server.prefill import ChunkBudget, Prefill
from ssd.draft.server.session import DraftSession, Ledger, Longs, RoundTimer
from ssd.draft.server.steps import Flags, GrowthResult, StepInput, Steps, TreeStep
from ssd.draft.server.tenants import Admission, RowAccounting, StepDemand, Tenants
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import TENANT_CELLS
from ssd.kvcache.block_manager import BlockManager, OutOfBlocks

_ROWS_PER_SEAT = 4
"""Rows that a sequence needs in a round. With fewer, trees are late and shallow, and all sequences together
gain less; with more, a further sequence gains more than deeper trees."""
_BUSY_SHARE = 0.7
"""The next step is launched when this share of the usual duration of the current one has passed. Later, the
device might wait; earlier, more outcomes would come too late for it."""


@dataclass(frozen=True, slots=True)
class HostLimits:
    prefill_chunk: int = 128
    """Prompt tokens that are prefilled in one step, at most."""
    max_model_len: int = 2048
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of tenants by name; 1 for those not named."""


class OutOfTrees(Exception):  # noqa: N818 - exhaustion is a state here, not an error
    """All trees are in use. Expected under load; nothing has been changed."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step, and what the host knew when it was launched."""

    step: TreeStep
    at: SessionsAt
    live: Flags
    is_shared: bool
    """There were several tenants."""
    prefilled: Sequence[tuple[int, int]]
    """Rows of the tables whose prompts it reads, and numbers of tokens."""
    waiting: Sequence[int]
    """Rows that have more to read."""
    is_withheld: bool
    """A prompt was not read because other sequences grow."""
    started: float


class DraftScheduler:
    def __init__(
        self,
        steps: Steps,
        blocks: BlockManager,
        limits: HostLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        shape = steps.forest.shape
        self._steps, self._shape, self._limits = steps, shape, limits
        self._sessions: dict[int, DraftSession] = {}
        """By row of the tables, the oldest first."""
        self.ledger = Ledger(shape.sequences)
        self._round_timer, self._clock = RoundTimer(shape.sequences, clock), clock
        self.offers = Offers(clock)
        self._kv_blocks = KvBlocks(shape, steps.write_blocks, blocks, self.ledger, self.offers)
        self.tenants = Tenants(shape.sequences, limits.weights)
        self._accounting = RowAccounting(self.tenants)
        self._prefill = Prefill(
            self._sessions,
            self._kv_blocks,
            self.ledger,
            steps.forest.tables,
            self.tenants.prompt_tokens,
        )
        self._chunk_budget = ChunkBudget(limits.prefill_chunk)
        self.admission = Admission(self._sessions, self._kv_blocks, self.ledger, self.tenants, self.offers)
        self._free_rows = list(range(shape.sequences, 0, -1))
        self._pending: dict[int, list[int]] = {}
        """By row: tokens of an outcome that are not applied yet."""
        self._in_flight = deque[_Launched]()
        """The oldest first."""
        self._unsent = deque[tuple[NewNodes, SessionsAt]]()
        """New nodes of steps that were collected, the oldest first."""
        self._num_rows = 0
        """Rows of the steps that were collected since `grow` returned."""
        self._is_changed = True
        """Something happened since the last launch that may give rows to an empty step."""
        self._idle_live = np.zeros(shape.sequences + 1, np.bool_)
        """The sequences that could grow when the last step was empty."""
        self.last_span = 0.0, -np.inf
        """When the last collected step began and ended."""
        self.is_starved = False
        """No step is possible because sessions lack KV blocks: the caller must close a session."""

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def kv_usage(self) -> float:
        return self._kv_blocks.usage

    @property
    def num_free_sequences(self) -> int:
        """Sessions that may still be opened, beside those for which offers keep room."""
        return max(0, len(self._free_rows) - self.offers.num_sequences)

    def num_seats_for(self, tenant: str) -> int:
        """Sessions that a tenant had better still open; one where there are none and another tenant has more.

        Until a round was measured, one for each free tree.
        """
        num_rows = self._shape.width * self._round_timer.steps_per_round
        useful = max(1, int(num_rows / _ROWS_PER_SEAT)) if num_rows else self.most_sessions
        left = useful - self.num_sessions - self.offers.num_sequences
        return max(0, min(left, self.num_free_sequences)) or int(self.tenants.has_less_than_another(tenant))

    @property
    def num_free_tokens(self) -> int:
        """Tokens for which there are free KV blocks, beside those that offers keep."""
        return max(0, self._kv_blocks.num_free) * self._shape.block

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    @property
    def most_sessions(self) -> int:
        return self._shape.sequences

    @property
    def is_growing(self) -> bool:
        """Whether `grow` has more to return without further messages."""
        return bool(self._in_flight or self._unsent)

    @property
    def spare_seconds(self) -> float:
        """Time before the next step should be launched, so that the device does not wait for it."""
        if not self._in_flight:
            return 0.0
        latest = self._in_flight[-1]
        began = max(latest.started, self.last_span[1])
        num_prompt = sum(count for _row, count in latest.prefilled)
        usual = self._round_timer.step_seconds + self._chunk_budget.seconds_for(num_prompt)
        return began + _BUSY_SHARE * usual - self._clock()

    def offer(self, owner: Owner, tenant: str, message: AskOpen) -> int:
        """Keeps room for a sequence. Returns how many of its tokens are cached, about.

        Raises OutOfTrees or OutOfBlocks where an opening would fail, also with evictions.
        """
        if not self.has_free_tree and self.admission.for_tree(tenant) is None:
            raise OutOfTrees
        num_cached = min(self._kv_blocks.num_cached(tenant, message.prefix), message.num_tokens - 1)
        num_blocks = self._kv_blocks.num_blocks_for(message.num_tokens) - num_cached // self._shape.block
        lacking = num_blocks - self._kv_blocks.num_free
        if lacking > 0 and self.admission.for_size(tenant, num_blocks, lacking) is None:
            raise OutOfBlocks
        self.offers.keep(owner, tenant, num_blocks)
        return num_cached

    def open(self, session: DraftSession) -> None:
        """Opens a session and gives it a row. Raises OutOfTrees, OutOfBlocks or ValueError if that fails."""
        self._check_length(session)
        if not self.has_free_tree:
            raise OutOfTrees
        # The lowest row: steps compute all rows up to the highest one in use.
        num_computed = self._kv_blocks.allocate(self._free_rows[-1], session)
        session.enter(self.ledger, self._free_rows.pop())
        row = session.row
        self._round_timer.enter(row)
        self._sessions[row] = session
        self.tenants.enter(row, session.tenant)
        part = self._calibration_part(session.tenant)
        self._steps.open(session, num_computed=num_computed, calibration_part=part)
        self.ledger.num_computed[row] = num_computed
        self._kv_blocks.enter(session)
        if num_computed < len(session.tokens) - 1:
            self._prefill.unread.add(row)
        self._is_changed = True

    def _calibration_part(self, tenant: str) -> int:
        """The index of the tenant's part of the calibration counts; clears that part if it is new."""
        part, is_new = self.tenants.calibration_part(tenant)
        if is_new:
            self._steps.flush()
            self._steps.forest.tables.counts[:, part * TENANT_CELLS : (part + 1) * TENANT_CELLS] = 0.0
        return part

    def close(self, session: DraftSession) -> None:
        row = session.row
        if self._sessions.get(row) is not session:
            return
        if row in self._pending:
            # Its last outcome still counts for the calibration.
            self._apply()
        del self._sessions[row]
        self._steps.close(session)
        self._kv_blocks.free(session)
        self.ledger.clear(row)
        self.tenants.leave(row, session.tenant)
        self._prefill.unread.discard(row)
        insort(self._free_rows, row, key=neg)
        self._is_changed = True

    @property
    def has_free_tree(self) -> bool:
        """Whether there is a tree for one more session."""
        return self.num_free_sequences > 0

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
        """A frame with the whole tree of a session. Waits for the steps in flight."""
        self._apply()
        while self._in_flight:
            self._collect()
        # The tree has these nodes already.
        others = np.arange(self._shape.sequences + 1) != session.row
        self._unsent = deque((new.of(others), at) for new, at in self._unsent)
        self._steps.flush()
        forest = self._steps.forest
        found = whole_tree(forest.xp, forest.shape, forest.tables, session.row)
        return numbered_frames(found, self.ledger, self._sessions_now(), full=True)

    def grow(self) -> tuple[FrameBatch | None, int]:
        """Launches a step if there may be work, and collects the one that is due.

        Returns the frames of new nodes and the number of rows of the collected step; 0: there was none, or
        it had no work.
        """
        # Twice: an empty step may show that a prompt can be read, or that a sequence may go on.
        for _ in range(2):
            is_launched = self._launch()
            if len(self._in_flight) > (self._steps.depth if is_launched else 0):
                self._collect()
            if self._num_rows or self._in_flight or not self._is_changed:
                break
        num_rows, self._num_rows = self._num_rows, 0
        if not self._unsent:
            return None, num_rows
        new, at = self._unsent.popleft()
        # A session may have been closed since the step was collected.
        new = new.of(at.openings == self.ledger.openings)
        return numbered_frames(new, self.ledger, at, full=False), num_rows

    def _launch(self) -> bool:
        """Returns whether a step was launched."""
        self._apply()
        self._kv_blocks.cover_lacking()
        behind = self._behind()
        chunks, is_withheld = self._choose_chunks(self._live(behind))
        # A prompt that was taken over or is read to its end no longer holds its sequence back.
        behind = self._behind()
        live = self._live(behind)
        if not chunks and not self._is_changed and not (live & ~self._idle_live).any():
            return False
        self._is_changed = self.is_starved = False
        usage = self.tenants.columns() if self.tenants.are_several else None
        started = self._clock()
        steps_left = self._round_timer.steps_left()
        given = StepInput(live, steps_left, usage, chunks, self._num_due(behind * live))
        prefilled = [(each.row, len(each.tokens)) for each in chunks]
        at, waiting = self._sessions_now(), list(self._prefill.unread)
        step = self._steps.launch(given)
        if chunks:
            self._prefill.finish(chunks)
            self._chunk_budget.note_launch()
        is_shared = usage is not None
        self._in_flight.append(_Launched(step, at, live, is_shared, prefilled, waiting, is_withheld, started))
        return True

    def _choose_chunks(self, live: Flags) -> tuple[list[PrefillChunk], bool]:
        """Chunks for the next step, and whether none may be read now because other sequences grow."""
        if not self._prefill.unread:
            return [], False
        most = self._chunk_budget.tokens(others_grow=bool((live & ~self._idle_live).any()))
        return (self._prefill.choose(most), False) if most else ([], True)

    def _collect(self) -> None:
        """Waits for the oldest step in flight."""
        launched = self._in_flight.popleft()
        result = launched.step.collect()
        num_prompt = sum(count for _row, count in launched.prefilled)
        num_chosen = result.num_rows
        num_rows = num_chosen + num_prompt
        self._num_rows += num_rows
        began, ended = max(launched.started, self.last_span[1]), self._clock()
        self.last_span = began, ended
        is_same = launched.at.openings == self.ledger.openings
        self._note_progress(result, is_same)
        self._chunk_budget.note_end(num_prompt, ended - began, self._round_timer.step_seconds)
        if not num_rows:
            self._note_idle(launched)
            return
        self._idle_live[:] = self.is_starved = False
        self._accounting.settle(
            StepDemand(result, launched.at.length * launched.live, is_same),
            launched.prefilled,
            launched.waiting if launched.is_shared else None,
        )
        if not num_prompt:
            self._round_timer.note_step(ended - began)
        if num_chosen:
            self._unsent.append((new_nodes(result.fresh, self._shape.children), launched.at))

    def _note_idle(self, launched: _Launched) -> None:
        """Until something changes, or another sequence may grow, further steps would be empty too."""
        self._idle_live = launched.live
        # Tenants that owe rows may prefill now: no other tenant has work.
        if (self.tenants.reset() and self._prefill.unread) or launched.is_withheld:
            self._is_changed = True
        # A step in flight may be the one that an eviction made possible.
        lacks = any(self.ledger.may_grow(each.row) for each in self._kv_blocks.lacking.values())
        self.is_starved = lacks and not self._in_flight

    def check_integrity(self) -> None:
        self._steps.flush()
        forest = self._steps.forest
        forest.check_integrity()
        self._kv_blocks.check_integrity(self._sessions, forest.xp.to_host(forest.tables.blocks))
        if sorted([*self._free_rows, *self._sessions]) != list(range(1, self._shape.sequences + 1)):
            raise RuntimeError("a row is both free and in use, or neither")
        self.tenants.check_integrity({row: each.tenant for row, each in self._sessions.items()})
        if np.flatnonzero(self.ledger.is_open).tolist() != sorted(self._sessions):
            raise RuntimeError("the rows that are open in the ledger are not those in use")
        for row, session in self._sessions.items():
            if session.row != row:
                raise RuntimeError(f"row {row} does not belong to the session that holds it")
        is_ahead = self.ledger.num_computed > forest.xp.to_host(forest.tables.num_computed)
        if (is_ahead & self.ledger.is_open).any():
            raise RuntimeError("the ledger says that more of a text is read than the tables do")

    def _check_length(self, session: DraftSession) -> None:
        if len(session.tokens) + 2 > self._limits.max_model_len:
            raise ValueError(f"the draft's context ends at {self._limits.max_model_len} tokens")

    # Outcomes.

    def _apply(self) -> None:
        """Applies pending outcomes to the trees, in parts where one is longer than the tables allow."""
        most = self._shape.outcome
        while self._pending:
            parts, rest = dict[int, list[int]](), dict[int, list[int]]()
            for row, tokens in self._pending.items():
                if not self._kv_blocks.cover(self._sessions[row]):
                    # Keys cannot be moved into missing blocks: drop the tree and read the new tokens later.
                    self._steps.forest.tables.is_used[row] = False
                parts[row] = tokens[:most]
                if len(tokens) > most:
                    rest[row] = tokens[most:]
            self._steps.apply(*self._outcome_columns(parts))
            self._pending = rest
            self._is_changed = True

    def _outcome_columns(self, parts: Mapping[int, Sequence[int]]) -> tuple[Longs, Longs]:
        """By row: the number of tokens, and the tokens."""
        shape = self._shape
        count = np.zeros(shape.sequences + 1, np.int64)
        tokens = np.zeros((shape.sequences + 1, shape.outcome), np.int64)
        count[list(parts)] = [len(chunk) for chunk in parts.values()]
        is_token = np.arange(shape.outcome) < count[:, None]
        tokens[is_token] = [token for row in sorted(parts) for token in parts[row]]
        return count, tokens

    def _note_progress(self, result: GrowthResult, is_same: Flags) -> None:
        """Notes how much of each text is read: shares full KV blocks, and hands texts with many unread tokens
        to prefill.

        Of texts in prefill the host knows it, and later than this step.
        """
        ledger, is_known = self.ledger, is_same & self.ledger.is_open
        for row in self._prefill.unread:
            is_known[row] = False
        for each in self._in_flight:
            for row, _count in each.prefilled:
                is_known[row] = False
        # The step may have been launched before the text took over blocks that another text has read.
        num_computed = np.maximum(ledger.num_computed, result.num_computed * is_known)
        ledger.num_computed[:] = num_computed
        for row in self._kv_blocks.are_full(num_computed * is_known).tolist():
            self._kv_blocks.share(self._sessions[row], int(num_computed[row]))
        is_far = is_known & (ledger.length - num_computed > self._shape.ring)
        if not is_far.any():
            return
        for each in self._in_flight:
            # Such a step may read more of it: how much is not known before its end.
            is_far &= ~each.live
        for row in np.flatnonzero(is_far).tolist():
            self._prefill.unread.add(row)
            self._is_changed = True

    # Steps.

    def _behind(self) -> Longs:
        """By row: tokens of the text that no collected step has read."""
        return self.ledger.length - self.ledger.num_computed

    def _live(self, behind: Longs) -> Flags:
        """Which sequences may grow. One with more unread tokens than the ring holds waits for prefill."""
        ledger = self.ledger
        np.greater(behind, self._shape.ring, out=ledger.is_held)
        for row in self._prefill.unread | self._kv_blocks.lacking.keys():
            ledger.is_held[row] = True
        return ledger.live()

    def _num_due(self, behind: Longs) -> int:
        """About how many rows a step needs: for nodes, unread tokens, and all tokens of new texts.

        `behind`: of the texts that may grow.
        """
        # After an outcome that the tree had, nothing is unread; after others mostly one token. A step in
        # flight reads what was unread when it was launched.
        ledger, begun = self.ledger, behind * (self.ledger.n > 0)
        is_due = begun > 0
        for each in self._in_flight:
            is_same = (each.at.openings == ledger.openings) & (each.at.n == ledger.n)
            is_due &= ~(each.live & is_same)
        due, beside = int(np.count_nonzero(is_due)), int(behind.sum() - begun.sum())
        return max(self._shape.width, due) + beside

    def _sessions_now(self) -> SessionsAt:
        ledger = self.ledger
        return SessionsAt(ledger.openings.copy(), ledger.n.copy(), ledger.length.copy())
