"""Giving way and coming back: preemption, recomputation, children of a request with n > 1."""

from collections.abc import Callable

import pytest

from ssd.engine.scheduler import Schedule, Scheduler
from ssd.engine.sequence import Sequence
from tests.engine.test_scheduler import add, build, make, row_of, shape, step
from tests.kvcache.matching import num_matched


def pressed(
    *, cache_generated: bool = True, caching: bool = False
) -> tuple[Scheduler, Sequence, Sequence, Schedule]:
    """Two sequences grow in a pool for one and a half, until the younger one is preempted."""
    scheduler = build(num_blocks=6, max_num_seqs=2, cache_generated=cache_generated, caching=caching)
    old, young = make(6, max_tokens=14), make(6, first=20, max_tokens=14)
    add(scheduler, old, young)
    while not (schedule := step(scheduler)).preempted:
        pass
    return scheduler, old, young, schedule


def test_readmission_uses_the_prefix_cache() -> None:
    scheduler, old, young, _ = pressed(caching=True)
    scheduler.finish(old)
    (row,) = step(scheduler).rows
    assert row.sequence is young
    assert row.start >= 4
    assert young.num_cached == 0  # what was reused at first, as users are told


def test_generated_tokens_are_cached_only_if_allowed() -> None:
    for cache_generated, expected in ((True, 8), (False, 4)):
        scheduler = build(cache_generated=cache_generated)
        sequence = make(6)
        add(scheduler, sequence)
        for _ in range(7):
            step(scheduler)
        assert num_matched(scheduler._blocks, sequence.tokens[:12]) == expected


def test_preempted_go_back_to_the_front_in_order_of_arrival() -> None:
    scheduler = build(num_blocks=8, max_num_seqs=4, caching=False)
    sequences = [make(7, first=20 * i, max_tokens=25) for i in range(4)]
    late = make(7, first=90)
    add(scheduler, *sequences)
    step(scheduler)
    add(scheduler, late)
    while scheduler.num_running > 1:
        step(scheduler)
    assert scheduler._waiting == [*sequences[1:], late]
    while scheduler.has_work:
        step(scheduler)
    assert all(sequence.num_generated == 25 for sequence in sequences)


def test_a_refused_sequence_is_not_hashed_again_until_blocks_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = build(num_blocks=4)
    old, waiting = make(10, max_tokens=4), make(8, first=20, max_tokens=4)
    add(scheduler, old, waiting)
    calls = list[int]()
    allocate = scheduler._blocks.allocate

    def counting(seq_id: int, tokens: list[int], *, num_reusable: int | None, cache_key: str) -> int:
        calls.append(seq_id)
        return allocate(seq_id, tokens, num_reusable=num_reusable, cache_key=cache_key)

    monkeypatch.setattr(scheduler._blocks, "allocate", counting)
    while scheduler.has_work:
        step(scheduler)
    assert calls == [old.seq_id, waiting.seq_id, waiting.seq_id]


# --- n > 1 ---


def test_children_fork_once_the_parents_prompt_is_computed() -> None:
    scheduler = build(budget=6, caching=False)
    parent = make(9)
    child, other = make(9, parent=parent), make(2, first=50)
    add(scheduler, parent, child, other)
    assert [row.sequence for row in step(scheduler).rows] == [parent, other]  # the child blocks nobody
    second = step(scheduler)
    assert [row.sequence for row in second.rows] == [other, parent]
    third = step(scheduler)
    forked = row_of(third, child)
    assert forked is not None
    assert (forked.start, forked.num_known, forked.samples) == (8, 1, True)
    tables = [scheduler._blocks.block_table(each.seq_id)[:2] for each in (parent, child)]
    assert tables[0] == tables[1]


def end_parent(scheduler: Scheduler, parent: Sequence) -> None:
    scheduler.finish(parent)


def preempt_parent(scheduler: Scheduler, parent: Sequence) -> None:
    assert scheduler._preempt_youngest() is parent


@pytest.mark.parametrize("lose", [end_parent, preempt_parent])
def test_a_child_outlives_its_parent_in_mid_prompt(lose: Callable[[Scheduler, Sequence], None]) -> None:
    scheduler = build(budget=6)
    parent = make(20, max_tokens=2)
    child = make(20, parent=parent, max_tokens=2)
    add(scheduler, parent, child)
    step(scheduler)
    lose(scheduler, parent)
    for _ in range(20):
        step(scheduler)
    assert not scheduler.has_work
    assert child.num_generated == 2


def test_a_child_that_wants_prompt_logits_computes_its_prompt() -> None:
    scheduler, parent = build(), make(9)
    child = make(9, parent=parent)
    child.wants_prompt_logits = True
    add(scheduler, parent, child)
    assert shape(step(scheduler)) == [(0, 9, 0, True, False)] * 2
