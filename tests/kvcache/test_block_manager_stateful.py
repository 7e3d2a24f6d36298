"""Random life of a block manager over a memory whose slots say whose content they hold."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ssd.kvcache.block_manager import BlockManager, OutOfBlocks
from tests.kvcache.fake_memory import FakeMemory
from tests.kvcache.matching import num_matched

# Two token values, and prompts that begin like earlier ones: equal starts are the rule, not the exception.
TAIL = st.lists(st.integers(0, 1), min_size=1, max_size=8)
REUSABLE = st.sampled_from([None, None, None, 0, 3, 7])
GARBAGE = 9


@dataclass
class Owner:
    tokens: list[int]
    cache_key: str
    num_computed: int


class BlockManagerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([12, 8, 16, 24, 2]),
        block_size=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching)
        self.memory = FakeMemory(num_blocks, block_size)
        self.owners: dict[int, Owner] = {}
        self.texts: list[list[int]] = [[]]
        self.next_id = 0

    def some_owner(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.owners)))

    def num_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.blocks.block_size)

    def num_free(self) -> int:
        used = {block for seq_id in self.owners for block in self.blocks.block_table(seq_id)}
        return self.blocks.num_blocks - len(used)

    def compute(self, seq_id: int, stop: int) -> None:
        """Write positions num_computed..stop-1, as a forward pass would."""
        owner, table = self.owners[seq_id], self.blocks.block_table(seq_id)
        self.memory.write(table, owner.tokens, owner.num_computed, stop, owner.cache_key)
        owner.num_computed = stop

    @rule(tail=TAIL, cache_key=st.sampled_from(["", "", "", "a"]), num_reusable=REUSABLE, data=st.data())
    def allocate(
        self, tail: list[int], cache_key: str, num_reusable: int | None, data: st.DataObject
    ) -> None:
        text = data.draw(st.sampled_from(self.texts))
        tokens = [*text[: data.draw(st.integers(0, len(text)))], *tail]
        self.texts = [*self.texts[-8:], tokens]
        seq_id, self.next_id = self.next_id, self.next_id + 1
        expected = num_matched(self.blocks, tokens, num_reusable=num_reusable, cache_key=cache_key)
        num_free = self.num_free()
        try:
            num_cached = self.blocks.allocate(seq_id, tokens, num_reusable=num_reusable, cache_key=cache_key)
        except OutOfBlocks:
            assert self.num_needed(len(tokens)) > num_free, "refused although blocks are free"
            assert self.num_free() == num_free
            self.free_one(next(iter(self.owners), None))
            return
        assert num_cached == expected < len(tokens)
        assert num_reusable is None or num_cached <= num_reusable
        self.owners[seq_id] = Owner(tokens, cache_key, num_cached)
        if data.draw(st.sampled_from([True, True, False])):
            self.compute(seq_id, len(tokens))
            self.commit(seq_id, data)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), chunk=st.sampled_from([1, 4, 99, 99, 99]))
    def prefill(self, data: st.DataObject, chunk: int) -> None:
        seq_id = self.some_owner(data)
        owner = self.owners[seq_id]
        self.compute(seq_id, min(len(owner.tokens), owner.num_computed + chunk))
        self.commit(seq_id, data)

    @precondition(lambda self: self.owners)
    @rule(
        data=st.data(), new=st.lists(st.integers(0, 1), min_size=1, max_size=4), num_drafted=st.integers(0, 5)
    )
    def decode(self, data: st.DataObject, new: list[int], num_drafted: int) -> None:
        """Append tokens, and write rejected drafts behind them as a verification does."""
        seq_id = self.some_owner(data)
        owner = self.owners[seq_id]
        num_tokens = len(owner.tokens) + len(new)
        needed = self.num_needed(num_tokens + num_drafted) - len(self.blocks.block_table(seq_id))
        assert self.blocks.can_grow(seq_id, num_tokens + num_drafted) == (needed <= self.num_free())
        try:
            self.blocks.grow(seq_id, num_tokens + num_drafted)
        except OutOfBlocks:
            assert needed > self.num_free()
            return
        owner.tokens = [*owner.tokens, *new]
        self.texts = [*self.texts[-8:], owner.tokens]
        self.compute(seq_id, num_tokens)
        table, drafted = self.blocks.block_table(seq_id), [*owner.tokens, *[GARBAGE] * num_drafted]
        self.memory.write(table, drafted, num_tokens, len(drafted), owner.cache_key)
        self.commit(seq_id, data)

    def commit(self, seq_id: int, data: st.DataObject) -> None:
        owner = self.owners[seq_id]
        num_cacheable = data.draw(st.sampled_from([len(owner.tokens)] * 3 + [len(owner.tokens) // 2]))
        self.blocks.commit(seq_id, owner.tokens, owner.num_computed, num_cacheable)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), num_more=st.sampled_from([0, 0, 0, 2, 9]))
    def trim(self, data: st.DataObject, num_more: int) -> None:
        """Behind the known tokens nothing is registered or shared, so this is never refused."""
        seq_id = self.some_owner(data)
        table = list(self.blocks.block_table(seq_id))
        num_tokens = len(self.owners[seq_id].tokens) + num_more
        self.blocks.trim(seq_id, num_tokens)
        assert list(self.blocks.block_table(seq_id)) == table[: self.num_needed(num_tokens)]

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def trim_too_much(self, data: st.DataObject) -> None:
        """Either it is refused, or no one misses the tokens in the blocks that were cut off."""
        seq_id = self.some_owner(data)
        owner, table = self.owners[seq_id], list(self.blocks.block_table(seq_id))
        num_tokens = data.draw(st.integers(0, len(owner.tokens)))
        try:
            self.blocks.trim(seq_id, num_tokens)
        except ValueError:
            assert list(self.blocks.block_table(seq_id)) == table
            return
        owner.tokens = owner.tokens[: self.blocks.num_covered(seq_id)]
        owner.num_computed = min(owner.num_computed, len(owner.tokens))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent_id = self.some_owner(data)
        parent = self.owners[parent_id]
        if not parent.num_computed:
            return
        num_tokens = data.draw(st.integers(1, parent.num_computed))
        child_id, self.next_id = self.next_id, self.next_id + 1
        assert self.blocks.can_fork(parent_id, num_tokens) == (self.num_free() >= 1)
        try:
            num_shared = self.blocks.fork(parent_id, child_id, num_tokens)
        except OutOfBlocks:
            assert self.num_free() == 0
            return
        assert num_shared == (num_tokens - 1) // self.blocks.block_size * self.blocks.block_size
        self.owners[child_id] = Owner(parent.tokens[:num_tokens], parent.cache_key, num_shared)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.free_one(self.some_owner(data))

    def free_one(self, seq_id: int | None) -> None:
        if seq_id is not None:
            self.blocks.free(seq_id)
            del self.owners[seq_id]

    @invariant()
    def everyone_finds_its_own_content(self) -> None:
        self.blocks.check_integrity()
        assert self.blocks.num_free == self.num_free()
        assert set(self.blocks.seq_ids) == set(self.owners)
        for seq_id, owner in self.owners.items():
            table = self.blocks.block_table(seq_id)
            assert self.blocks.num_covered(seq_id) >= len(owner.tokens)
            self.memory.expect(table, owner.tokens, 0, owner.num_computed, owner.cache_key)

    def teardown(self) -> None:
        for seq_id in getattr(self, "owners", {}):
            self.blocks.free(seq_id)
            self.blocks.check_integrity()
        if hasattr(self, "blocks"):
            assert self.blocks.num_free == self.blocks.num_blocks


RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
BlockManagerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, **RELAXED)  # type: ignore[arg-type]
TestBlockManager = pytest.mark.timeout(120)(BlockManagerMachine.TestCase)
