"""Random load on a scheduler with tiny pools, against a target whose next token depends on all before it.

Every row must find, at each earlier position, the content this sequence would have computed there; and what
comes out must be what plain decoding gives, whatever was drafted, shared, preempted or aborted on the way.
"""

from collections.abc import Sequence as Tokens
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ssd.draft.client.proposals import has_path, simplified
from ssd.engine.scheduler import Schedule, ScheduledRow, Scheduler, SchedulerLimits
from ssd.engine.sequence import Sequence, SequenceStatus
from ssd.kvcache.block_manager import BlockManager
from tests.kvcache.fake_memory import FakeMemory

WRONG = 9  # no target emits it
LOGITS = st.sampled_from([False, False, False, True])
# How many, how many of them are right, and how many wrong ones stand beside each.
DRAFTS = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2))


def next_token(tokens: Tokens[int], index: int) -> int:
    return crc32(bytes([*tokens, index])) % 3


def plain_decoding(prompt: Tokens[int], index: int, num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, index))
    return tokens[len(prompt) :]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 12),
        chunked=st.booleans(),
        caching=st.booleans(),
        cache_generated=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        extra_budget: int,
        chunked: bool,
        caching: bool,
        cache_generated: bool,
    ) -> None:
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching)
        self.memory = FakeMemory(num_blocks, block_size)
        self.max_model_len = max(2, min(num_blocks * block_size, 20))
        budget = max_num_seqs + extra_budget
        limits = SchedulerLimits(max_num_seqs, budget, self.max_model_len, chunked, cache_generated)
        self.scheduler = Scheduler(limits, self.blocks)
        self.sequences: list[Sequence] = []
        self.max_tokens: dict[int, int] = {}  # as asked for
        self.aborted: set[int] = set()

    @property
    def live(self) -> list[Sequence]:
        return [each for each in self.sequences if each.status is not SequenceStatus.FINISHED]

    @rule(data=st.data(), n=st.integers(1, 3), wants_prompt_logits=LOGITS, is_next_turn=st.booleans())
    def admit(self, data: st.DataObject, n: int, wants_prompt_logits: bool, is_next_turn: bool) -> None:
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=min(10, self.max_model_len - 1)))
        if self.sequences and is_next_turn:  # its prompt is what someone else has come to
            earlier = data.draw(st.sampled_from(self.sequences))
            prompt = [*earlier.tokens, *prompt][: self.max_model_len - 1]
        cache_key = data.draw(st.sampled_from(["", "", "a"]))
        parent_id = None
        for index in range(n):
            sequence = Sequence(
                "request",
                prompt,
                max_tokens=data.draw(st.integers(1, 20)),
                index=index,
                parent_id=parent_id,
                wants_prompt_logits=wants_prompt_logits and index == 0,
                cache_key=cache_key,
            )
            self.scheduler.add(sequence)
            self.sequences.append(sequence)
            self.max_tokens[sequence.seq_id] = sequence.max_tokens
            parent_id = sequence.seq_id if parent_id is None else parent_id
        self.scheduler.check_integrity()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        self.scheduler.finish(sequence)
        if data.draw(st.booleans()):
            self.scheduler.finish(sequence)
        self.aborted.add(sequence.seq_id)
        self.scheduler.check_integrity()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_steps=st.integers(1, 4))
    def step(self, data: st.DataObject, num_steps: int) -> None:
        for _ in range(num_steps):
            if not self.live:
                return
            for sequence in self.live:
                if sequence.status is SequenceStatus.RUNNING:
                    self.draft(sequence, *data.draw(DRAFTS))
            gone = data.draw(st.integers(0, 9 * len(self.live)))
            if data.draw(st.integers(0, 9)) == 0:
                self.run_step_that_fails()
            else:
                self.run_step(abort_in_flight=self.live[gone] if gone < len(self.live) else None)

    def draft(self, sequence: Sequence, num_drafted: int, num_right: int, num_beside: int = 0) -> None:
        right = plain_decoding(sequence.tokens, sequence.index, num_drafted)
        path = [token if i < num_right else WRONG for i, token in enumerate(right)]
        # Whoever is beside comes first, so that the path is not the first nodes.
        tokens = [each for token in path for each in (*[WRONG] * num_beside, token)]
        parents = [i // (num_beside + 1) * (num_beside + 1) - 1 for i in range(len(tokens))]
        sequence.offer(tuple(tokens), simplified(parents))

    def run_step(self, abort_in_flight: Sequence | None = None) -> None:
        seats_before = {each.seq_id for each in self.live if each.status is SequenceStatus.RUNNING}
        schedule = self.schedule()
        self.check_rows(schedule.rows, schedule.preempted, seats_before)
        for row in schedule.rows:
            self.check_row(row)
            self.attend(row)  # all rows before any is written: none may lean on another of the same step
        for row in schedule.rows:
            self.write(row)
        tables = {each: [*self.blocks.block_table(each)] for each in self.blocks.seq_ids}
        if abort_in_flight is not None:
            self.scheduler.finish(abort_in_flight)
            self.aborted.add(abort_in_flight.seq_id)
        for row in schedule.rows:
            sequence, outcome = row.sequence, self.outcome(row)
            self.move(row, outcome, tables[sequence.seq_id])
            self.scheduler.commit(row, outcome)
            if sequence.seq_id not in self.aborted and not sequence.num_remaining(self.max_model_len):
                self.scheduler.finish(sequence)
        self.scheduler.check_integrity()

    def run_step_that_fails(self) -> None:
        """The rows are computed, perhaps, but never given back."""
        for row in self.schedule().rows:
            self.write(row)
        self.scheduler.check_integrity()

    def schedule(self) -> Schedule:
        tokens_before = [list(each.tokens) for each in self.sequences]
        schedule = self.scheduler.schedule()
        assert [each.tokens for each in self.sequences] == tokens_before, "scheduling changed tokens"
        depths = {row.sequence.seq_id: row.depth for row in schedule.rows}
        for sequence in self.scheduler._running:
            num_held = len(self.blocks.block_table(sequence.seq_id))
            num_needed = sequence.num_tokens + depths.get(sequence.seq_id, 0)
            assert num_held == self.blocks.num_blocks_for(num_needed), "a sequence keeps more than it needs"
        return schedule

    def check_rows(
        self, rows: tuple[ScheduledRow, ...], preempted: tuple[Sequence, ...], seats_before: set[int]
    ) -> None:
        limits = self.scheduler.limits
        assert rows, "there is work and no row"
        assert len({row.sequence.seq_id for row in rows}) == len(rows)
        assert not {row.sequence for row in rows} & set(preempted)
        num_tokens = sum(len(row.tokens) for row in rows)
        alone = len(rows) == 1 and not limits.enable_chunked_prefill and not rows[0].generated
        assert num_tokens <= limits.max_num_batched_tokens or alone
        if preempted:  # only the youngest gave way, and nobody new came in
            assert not any(row.sequence.seq_id not in seats_before for row in rows)
            kept = [row.sequence.arrival for row in rows]
            assert max(kept) < min(sequence.arrival for sequence in preempted)

    def check_row(self, row: ScheduledRow) -> None:
        sequence, start, num_prompt = row.sequence, row.start, row.sequence.num_prompt
        stop_known, stop = start + row.num_known, start + row.num_known + row.depth
        assert row.num_known >= 1
        assert start == sequence.num_computed
        assert list(row.tokens[: row.num_known]) == sequence.tokens[start:stop_known]
        assert row.samples == (stop_known == sequence.num_tokens)
        assert row.generated == (start >= num_prompt)
        assert row.generated or stop <= num_prompt
        assert row.samples or not row.num_drafted
        assert stop < sequence.num_tokens + max(1, sequence.num_remaining(self.max_model_len))
        assert stop < self.max_model_len
        if not self.scheduler.limits.enable_chunked_prefill:
            assert row.generated or stop == num_prompt
        assert not (sequence.wants_prompt_logits and sequence.num_cached)

    def attend(self, row: ScheduledRow) -> None:
        """Read everything before the row, as the target does."""
        sequence, split = row.sequence, min(row.start, row.sequence.num_prompt)
        table = self.blocks.block_table(sequence.seq_id)
        self.memory.expect(table, sequence.tokens, 0, split, self.label(sequence, generated=False))
        self.memory.expect(table, sequence.tokens, split, row.start, self.label(sequence, generated=True))

    def move(self, row: ScheduledRow, outcome: list[int], table: list[int]) -> None:
        """Of a tree, the accepted path comes to its pages, whether or not its owner is still there."""
        if row.parents is not None:
            first = row.start + row.num_known
            tokens = [*row.sequence.tokens[: row.start], *row.tokens[: row.num_known], *outcome[:-1]]
            label = self.label(row.sequence, generated=True)
            self.memory.write(table, tokens, first, len(tokens), label)

    def write(self, row: ScheduledRow) -> None:
        drafted = () if row.parents is not None else row.drafted  # a tree's nodes lie beside the pages
        tokens = [*row.sequence.tokens[: row.start], *row.tokens[: row.num_known], *drafted]
        table = self.blocks.block_table(row.sequence.seq_id)
        label = self.label(row.sequence, generated=row.generated)
        self.memory.write(table, tokens, row.start, len(tokens), label)

    def label(self, sequence: Sequence, *, generated: bool) -> str:
        """What keys depend on beside the tokens. Where generated tokens are cached, both kinds are alike."""
        kind = "generated" if generated and not self.scheduler.limits.cache_generated else ""
        return sequence.cache_key + kind

    def outcome(self, row: ScheduledRow) -> list[int]:
        """The target's own tokens, as far as the drafted ones agree with them."""
        if not row.samples:
            return []
        tokens = [*row.sequence.tokens[: row.start], *row.tokens[: row.num_known]]
        new = [next_token(tokens, row.sequence.index)]
        while has_path(row.drafted, row.parents, new):
            new.append(next_token([*tokens, *new], row.sequence.index))
        return new

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        # In every step the oldest running sequence moves on, or stands aside once for a whole prompt.
        patience = 4 * len(self.live) * self.max_model_len
        while self.scheduler.has_work:
            assert patience > 0, "no end in sight"
            patience -= 1
            for sequence in self.live:
                if sequence.status is SequenceStatus.RUNNING:
                    self.draft(sequence, patience % 5, patience % 3)
            self.run_step()
        assert self.blocks.num_free == self.blocks.num_blocks
        for sequence in self.sequences:
            assert sequence.status is SequenceStatus.FINISHED
            num_final = min(self.max_tokens[sequence.seq_id], self.max_model_len - sequence.num_prompt)
            expected = plain_decoding(sequence.prompt, sequence.index, num_final)
            if sequence.seq_id in self.aborted:
                expected = expected[: sequence.num_generated]
            assert sequence.generated == expected


RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, **RELAXED)  # type: ignore[arg-type]
TestScheduler = pytest.mark.timeout(180)(SchedulerMachine.TestCase)
