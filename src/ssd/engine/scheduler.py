"""Decides which tokens of which sequences the target computes in the next step, and which are preempted.

Knows sequences, limits and the block manager. Does not know tensors, sampling or drafts: callers pass the
drafted tokens and the decided ones.

Both queues are in order of arrival. Decoding sequences come first, each with the one token it needs; drafted
tokens and prompts share the remaining budget. A prompt that does not fit takes a quarter of it, and at most
two prompts are computed in parts at a time, so a short prompt does not wait for long ones before it. When
blocks run out, the latest arrival is preempted and computes its tokens again later. So the oldest running
sequence advances in every step.

Drafted tokens get blocks last, and for one step only: blocks that no known token of a running or newly
admitted sequence needs. So no sequence is preempted for a draft. A cached prefix may be evicted for drafted
tokens. Its blocks then hold no cached tokens, and later drafted tokens reuse them without evicting more.
"""

from bisect import insort
from collections.abc import Sequence as Tokens
from operator import attrgetter

from ssd.draft.client.proposals import cut
from ssd.engine.schedule import RowsToBe, Schedule, ScheduledRow, SchedulerLimits
from ssd.engine.sequence import Sequence, SequenceStatus
from ssd.kvcache.block_manager import BlockManager, IntegrityError, OutOfBlocks

__all__ = ["Schedule", "ScheduledRow", "Scheduler", "SchedulerLimits"]

_by_arrival = attrgetter("arrival")
_MOST_IN_PARTS = 2
"""Prompts too long for one step that may be computed at the same time."""


class Scheduler:
    def __init__(self, limits: SchedulerLimits, block_manager: BlockManager) -> None:
        self.limits = limits
        self.max_num_further = limits.max_num_seqs
        """Running sequences, at most, in addition to the oldest one of each group: the further ones."""
        self.max_moving_further = limits.max_num_seqs
        """Further sequences that one step computes, at most, while there are sequences of several groups."""
        self._blocks = block_manager
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._sequences: dict[int, Sequence] = {}
        self._num_arrived = 0
        self._prompt_ran_alone = False
        self._refusal = (-1, 0)  # the sequence last refused for lack of blocks, and how many were free then

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def decoding(self) -> list[Sequence]:
        """The sequences of the next step that have generated a token: those that can be drafted for."""
        return [sequence for sequence in self._in_next_step if sequence.is_decoding]

    def forget_offers(self) -> None:
        """Drops drafted tokens that were not verified, because a step failed or left the sequence out."""
        for sequence in self._running:
            sequence.offer()

    @property
    def _in_next_step(self) -> list[Sequence]:
        """The sequences of the next step: the oldest of each group, and a limited number of others."""
        if self.max_moving_further >= len(self._running):
            return self._running
        is_one_group = len({each.group for each in self._sequences.values()}) == 1
        room = len(self._running) if is_one_group else self.max_moving_further
        moving, groups = [], set()
        for sequence in self._running:
            if sequence.group in groups:
                room -= 1
            if room >= 0 or sequence.group not in groups:
                moving.append(sequence)
            groups.add(sequence.group)
        return moving

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, or refuse it with a ValueError if it could never run to its end."""
        self._check_admissible(sequence)
        sequence.arrival = self._num_arrived
        self._num_arrived += 1
        self._sequences[sequence.seq_id] = sequence
        self._waiting.append(sequence)

    def schedule(self, prompt_budget: int | None = None) -> Schedule:
        """Choose the rows of the next step. Pass each row to `commit` before the next call.

        `prompt_budget`: the most prompt tokens of the step, if fewer than fit.
        """
        preempted = self._secure_known_tokens()
        decoding = self.decoding
        filling = _oldest_then_shortest([each for each in self._in_next_step if not each.is_decoding])
        may_admit = not preempted and len(self._running) < self.limits.max_num_seqs
        spare = self.limits.max_num_batched_tokens - len(decoding)
        # While prompts wait, drafted tokens get at most half of the budget, so prompts do not wait for them.
        draft_budget = spare // 2 if filling or (may_admit and self._waiting) else spare
        rows, num_drafted = [], dict[int, int]()
        for sequence in decoding:
            rows.append(self._take_row(sequence, 1))
            count = min(len(sequence.drafted), draft_budget)
            num_drafted[sequence.seq_id] = count
            draft_budget -= count
            spare -= count
        prompt_budget = spare if prompt_budget is None else min(spare, prompt_budget)
        may_run_alone = not (rows and self._prompt_ran_alone)
        batch = RowsToBe(rows, prompt_budget, prompt_budget, may_run_alone)
        self._prompt_ran_alone = False
        if all(self._fill(sequence, batch) for sequence in filling) and may_admit:
            self._admit(batch)
        self._use_up(batch, num_decoding=len(decoding))
        drafted = (self._with_drafts(row, num_drafted.get(row.sequence.seq_id, 0)) for row in batch.rows)
        return Schedule(tuple(drafted), tuple(preempted))

    def commit(self, row: ScheduledRow, new_tokens: Tokens[int]) -> None:
        """Add new tokens to a row's sequence: the accepted drafted ones and the target's own.

        A row that does not sample has no new tokens.

        If a stop string cuts the new tokens short, pass only those before the cut, then call `finish`.
        """
        sequence = row.sequence
        if sequence.status is SequenceStatus.FINISHED:
            return  # aborted while the step was in flight
        row.check_outcome(new_tokens, self.limits.max_model_len)
        num_computed = row.start + row.num_known + max(0, len(new_tokens) - 1)
        sequence.num_computed = num_computed
        sequence.tokens.extend(new_tokens)
        sequence.offer()
        if num_computed // self._blocks.block_size > row.start // self._blocks.block_size:
            num_cacheable = self._num_cacheable(sequence)
            self._blocks.commit(sequence.seq_id, sequence.tokens, num_computed, num_cacheable)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence in any state, and free its blocks."""
        if self._sequences.pop(sequence.seq_id, None) is None:
            return
        if sequence.status is SequenceStatus.RUNNING:
            self._blocks.free(sequence.seq_id)
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.offer()

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queues, sequences and blocks agree."""
        self._blocks.check_integrity()
        if set(self._blocks.seq_ids) != {sequence.seq_id for sequence in self._running}:
            raise IntegrityError("the sequences that hold blocks are not the running ones")
        queues = [(SequenceStatus.WAITING, self._waiting), (SequenceStatus.RUNNING, self._running)]
        for status, queue in queues:
            if queue != [each for each in self._sequences.values() if each.status is status]:
                raise IntegrityError(f"the {status.value} queue lacks or repeats sequences, or is unordered")
        if len(self._sequences) != self.num_waiting + self.num_running:
            raise IntegrityError("a sequence is in no queue")
        if self.num_running > self.limits.max_num_seqs:
            raise IntegrityError("more sequences run than max_num_seqs")
        if any(sequence.num_computed for sequence in self._waiting):
            raise IntegrityError("a waiting sequence has computed tokens")
        for sequence in self._running:
            num_covered = self._blocks.num_covered(sequence.seq_id)
            if sequence.num_computed > min(num_covered, sequence.num_tokens - 1):
                raise IntegrityError(f"{sequence} has computed more than its blocks or tokens allow")

    def _check_admissible(self, sequence: Sequence) -> None:
        if sequence.status is not SequenceStatus.WAITING or sequence.arrival >= 0:
            raise ValueError(f"{sequence} was added before: create a new Sequence")
        self.limits.check_admissible(sequence, num_slots=self._blocks.num_blocks * self._blocks.block_size)
        parent = self._parent_of(sequence)
        if parent and (parent.prompt != sequence.tokens or parent.cache_key != sequence.cache_key):
            raise ValueError(f"{sequence} and its parent {parent} differ in prompt or cache_key")

    def _secure_known_tokens(self) -> list[Sequence]:
        """Give running sequences blocks for known tokens, oldest first; preempt the youngest if needed."""
        # `commit` does not do this: blocks of drafted tokens must be trimmed after a failed step too.
        fits = self._blocks.fits
        misfits = [each for each in self._running if not fits(each.seq_id, len(each.tokens))]
        for sequence in misfits:
            self._blocks.trim(sequence.seq_id, sequence.num_tokens)
        preempted: list[Sequence] = []
        for sequence in misfits:
            while sequence not in preempted and not self._blocks.can_grow(
                sequence.seq_id, sequence.num_tokens
            ):
                preempted.append(self._preempt_youngest())
            if sequence not in preempted:
                self._blocks.grow(sequence.seq_id, sequence.num_tokens)
        return preempted

    def _preempt_youngest(self) -> Sequence:
        sequence = self._running.pop()
        self._blocks.free(sequence.seq_id)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed = 0
        sequence.offer()
        sequence.num_preemptions += 1
        insort(self._waiting, sequence, key=_by_arrival)
        return sequence

    def _take_row(self, sequence: Sequence, budget: int) -> ScheduledRow:
        """A row of the next known tokens, prompt or generated."""
        start, num_prompt, num_tokens = sequence.num_computed, sequence.num_prompt, len(sequence.tokens)
        generated = start >= num_prompt
        stop = min(num_tokens if generated else num_prompt, start + budget)
        tokens = tuple(sequence.tokens[start:stop])
        return ScheduledRow(sequence, start, tokens, stop - start, stop == num_tokens, generated)

    def _with_drafts(self, row: ScheduledRow, count: int) -> ScheduledRow:
        """The row with at most `count` drafted tokens, as deep as the text's length and free blocks allow."""
        if count < 1:
            return row
        sequence, num_known = row.sequence, row.start + row.num_known
        num_covered = self._blocks.num_covered(sequence.seq_id)
        depth = sequence.num_remaining(self.limits.max_model_len) - 1  # the target adds the last token
        if num_known + depth > num_covered:
            depth = min(depth, self._blocks.max_coverable(sequence.seq_id) - num_known)
        row = row.with_drafts(*cut(sequence.drafted, sequence.parents, count=count, depth=depth))
        if num_known + row.depth > num_covered:
            self._blocks.grow(sequence.seq_id, num_known + row.depth)
        return row

    def _fill(self, sequence: Sequence, batch: RowsToBe) -> bool:
        """Add the next chunk of a sequence that is not decoding yet. False: the step is full."""
        num_prompt_left = sequence.num_prompt - sequence.num_computed
        if num_prompt_left > batch.budget and not self.limits.enable_chunked_prefill:
            # A whole prompt that does not fit beside the others gets a step of its own, but never two steps
            # in a row while others decode.
            if batch.may_run_alone:
                batch.rows = [self._take_row(sequence, num_prompt_left)]
                self._prompt_ran_alone = True
            return False
        if batch.budget > 0:
            is_chunked, num_wanted = (
                self.limits.enable_chunked_prefill,
                sequence.num_tokens - sequence.num_computed,
            )
            share = batch.share_of(num_wanted) if is_chunked else batch.budget
            batch.rows.append(self._take_row(sequence, share))
            batch.budget -= len(batch.rows[-1].tokens)
            batch.num_unfinished += not batch.rows[-1].samples
            batch.may_run_alone = False
        return batch.budget > 0

    def _use_up(self, batch: RowsToBe, *, num_decoding: int) -> None:
        """Give the remaining budget to prompts that the step computes in part, in the order of rows."""
        for index in range(num_decoding, len(batch.rows)):
            row = batch.rows[index]
            batch.rows[index] = self._take_row(row.sequence, len(row.tokens) + batch.budget)
            batch.budget -= len(batch.rows[index].tokens) - len(row.tokens)

    def _admit(self, batch: RowsToBe) -> None:
        """Admit waiting sequences in order of arrival while max_num_seqs, budget and blocks allow.

        Passes over sequences that must wait for their parent, their group or other long prompts.
        """
        index, groups = 0, {sequence.group for sequence in self._running}
        while index < len(self._waiting) and len(self._running) < self.limits.max_num_seqs:
            sequence = self._waiting[index]
            parent = self._fork_source(sequence)
            num_further = len(self._running) - len(groups)
            is_surplus = sequence.group in groups and num_further >= self.max_num_further
            if is_surplus or self._is_held_up(sequence, parent, batch):
                index += 1
                continue
            if not self._place(sequence, parent):
                return
            del self._waiting[index]
            groups.add(sequence.group)
            sequence.status = SequenceStatus.RUNNING
            insort(self._running, sequence, key=_by_arrival)
            if not self._fill(sequence, batch):
                return

    def _is_held_up(self, sequence: Sequence, parent: Sequence | None, batch: RowsToBe) -> bool:
        """Whether it must wait for its parent's prompt, or for other long prompts."""
        if parent is not None:
            return parent.num_computed < parent.num_prompt
        is_long = self.limits.enable_chunked_prefill and sequence.num_tokens > batch.most
        return is_long and batch.num_unfinished >= _MOST_IN_PARTS

    def _fork_source(self, sequence: Sequence) -> Sequence | None:
        """The running parent whose prompt blocks a sequence can share; None: it allocates its own."""
        if sequence.wants_prompt_logits or sequence.num_generated:
            return None
        parent = self._parent_of(sequence)
        return parent if parent and parent.status is SequenceStatus.RUNNING else None

    def _parent_of(self, sequence: Sequence) -> Sequence | None:
        return None if sequence.parent_id is None else self._sequences.get(sequence.parent_id)

    def _place(self, sequence: Sequence, parent: Sequence | None) -> bool:
        """Get blocks for all known tokens of a waiting sequence; False if there are too few."""
        # Finding shared blocks hashes the whole prompt, so do not retry until more blocks are free. Nothing
        # stalls: running sequences free their blocks when they end.
        seq_id, num_free = sequence.seq_id, self._blocks.num_free
        if self._refusal[0] == seq_id and num_free <= self._refusal[1]:
            return False
        try:
            if parent:
                num_cached = self._blocks.fork(parent.seq_id, seq_id, sequence.num_tokens)
            else:
                num_reusable = 0 if sequence.wants_prompt_logits else self._num_cacheable(sequence)
                num_cached = self._blocks.allocate(
                    seq_id, sequence.tokens, num_reusable=num_reusable, cache_key=sequence.cache_key
                )
        except OutOfBlocks:
            self._refusal = (seq_id, num_free)
            return False
        sequence.num_computed = num_cached
        if not sequence.num_preemptions:
            sequence.num_cached = num_cached
        return True

    def _num_cacheable(self, sequence: Sequence) -> int:
        """The number of leading tokens that may enter the prefix cache or be taken from it."""
        return sequence.num_tokens if self.limits.cache_generated else sequence.num_prompt


def _oldest_then_shortest(filling: list[Sequence]) -> list[Sequence]:
    """Prompts in the order to compute: the oldest, which advances in every step, then the shortest."""
    return filling[:1] + sorted(filling[1:], key=lambda each: each.num_prompt - each.num_computed)
