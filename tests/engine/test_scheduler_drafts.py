"""What becomes of drafted tokens: which ride along, which are kept, which outcomes are refused."""

import pytest

from ssd.engine.scheduler import Scheduler
from ssd.engine.sequence import Sequence
from tests.engine.test_scheduler import NEW, add, build, make, shape, step
from tests.kvcache.matching import num_matched


def decoding_sequence(scheduler: Scheduler, num_prompt: int = 5, max_tokens: int = 16) -> Sequence:
    sequence = make(num_prompt, max_tokens=max_tokens)
    add(scheduler, sequence)
    step(scheduler)
    return sequence


FORK = (7, 8, 9, 10), (-1, -1, 1, 2)
"""7, and 8 → 9 → 10."""


@pytest.mark.parametrize("outcome", [(7, 8, NEW), (9, NEW), (8, 9, 10, 7, NEW)])
def test_an_outcome_that_is_no_path_is_refused(outcome: tuple[int, ...]) -> None:
    scheduler = build()
    sequence = decoding_sequence(scheduler)
    sequence.offer(*FORK)
    row = scheduler.schedule().rows[0]
    with pytest.raises(ValueError, match=r"drafted ones"):
        scheduler.commit(row, outcome)


def test_of_a_tree_only_the_accepted_path_enters_the_cache() -> None:
    scheduler = build()
    sequence = decoding_sequence(scheduler, num_prompt=3)
    sequence.offer((7, 8, 9, 10, 11, 12), (-1, -1, 1, 2, 3, 4))
    row = scheduler.schedule().rows[0]
    scheduler.commit(row, (8, 9, 10, 11, NEW))
    assert num_matched(scheduler._blocks, [0, 1, 2, NEW, 8, 9, 10, 11, 0]) == 8
    assert num_matched(scheduler._blocks, [0, 1, 2, NEW, 7, 8, 9, 10, 0]) == 4
    sequence = decoding_sequence(scheduler, num_prompt=3)
    sequence.offer((7, 8, 9, 10, 11, 12), (-1, -1, 1, 2, 3, 4))
    [row] = [row for row in scheduler.schedule().rows if row.sequence is sequence]
    scheduler.commit(row, (8, 9, 10, NEW))
    assert num_matched(scheduler._blocks, [0, 1, 2, NEW, 8, 9, 10, NEW, 0]) == 4


def test_a_tree_is_cut_by_depth_where_the_text_ends_and_by_nodes_where_the_budget_does() -> None:
    scheduler = build(budget=4)
    sequence = decoding_sequence(scheduler, num_prompt=3, max_tokens=4)
    sequence.offer(*FORK)
    assert scheduler.schedule().rows[0].tokens == (NEW, 7, 8, 9)
    scheduler = build()
    sequence = decoding_sequence(scheduler, max_tokens=3)
    sequence.offer(*FORK)
    row = scheduler.schedule().rows[0]
    assert (row.tokens, row.parents) == ((NEW, 7, 8), (-1, -1))


def test_a_tree_takes_blocks_for_its_longest_path_only() -> None:
    scheduler = build(num_blocks=9)
    sequence = decoding_sequence(scheduler, num_prompt=7, max_tokens=5)
    sequence.offer((7,) * 9 + (8,), (-1,) * 9 + (0,))
    assert scheduler.schedule().rows[0].num_drafted == 10
    assert len(scheduler._blocks.block_table(sequence.seq_id)) == 3


def test_drafts_leave_every_decoding_row_its_token() -> None:
    scheduler = build(budget=8, max_num_seqs=4)
    sequences = [make(2, first=10 * i) for i in range(4)]
    add(scheduler, *sequences)
    step(scheduler)
    for sequence in sequences:
        sequence.drafted = (7,) * 8
    assert [len(row.tokens) for row in step(scheduler).rows] == [5, 1, 1, 1]


def test_drafts_leave_prompts_half_of_what_is_spare() -> None:
    scheduler = build(budget=9)
    sequence = decoding_sequence(scheduler)
    add(scheduler, make(20, first=30))
    sequence.drafted = (7,) * 20
    assert [len(row.tokens) for row in step(scheduler).rows] == [5, 4]


def test_drafts_are_dropped_before_anyone_is_preempted() -> None:
    scheduler = build(num_blocks=4, max_num_seqs=2, caching=False)
    old, young = make(4, max_tokens=8), make(4, first=20, max_tokens=8)
    add(scheduler, old, young)
    step(scheduler)
    old.drafted = young.drafted = (7,) * 7
    schedule = step(scheduler)
    # Both known tokens need a block of their own; the drafts get the slots that are left in those blocks.
    assert shape(schedule) == [(4, 1, 3, True, True), (4, 1, 3, True, True)]
    assert not schedule.preempted


def test_blocks_of_rejected_drafts_go_to_those_who_need_them() -> None:
    scheduler = build(num_blocks=6, max_num_seqs=2, caching=False)
    old, young = make(7), make(7, first=20)
    add(scheduler, old, young)
    step(scheduler)
    old.drafted = (7,) * 8
    assert [row.num_drafted for row in step(scheduler).rows] == [8, 0]
    assert scheduler._blocks.num_free == 0
    schedule = step(scheduler)  # each needs a third block: the two that the guesses took
    assert [row.sequence for row in schedule.rows] == [old, young]
    assert not schedule.preempted
    assert [len(scheduler._blocks.block_table(each.seq_id)) for each in (old, young)] == [3, 3]


def test_blocks_go_to_a_waiting_sequence_before_they_go_to_drafts() -> None:
    scheduler = build(num_blocks=4, caching=False)
    old = decoding_sequence(scheduler, num_prompt=7, max_tokens=9)
    add(scheduler, make(7, first=20, max_tokens=9))
    old.drafted = (7,) * 8
    assert shape(step(scheduler)) == [(7, 1, 0, True, True), (0, 7, 0, True, False)]


def test_drafts_evict_a_cached_prefix_once_not_each_step() -> None:
    scheduler = build(num_blocks=5)
    earlier = make(12, max_tokens=1)
    add(scheduler, earlier)
    step(scheduler)
    later = make(7, first=20, max_tokens=9)
    add(scheduler, later)
    step(scheduler)
    matched = []
    for _ in range(2):
        later.drafted = (7,) * 3
        step(scheduler)
        matched.append(num_matched(scheduler._blocks, earlier.tokens))
    assert matched == [8, 8]


def test_a_cut_burst_is_committed_as_far_as_it_counts() -> None:
    scheduler = build()
    sequence = decoding_sequence(scheduler)
    sequence.drafted = (7, 8, 9)
    row = scheduler.schedule().rows[0]
    scheduler.commit(row, (7, 8))  # a stop string ended with the second accepted draft
    assert (sequence.generated, sequence.num_computed) == ([NEW, 7, 8], 7)
    scheduler.check_integrity()
    scheduler.finish(sequence)
    scheduler.check_integrity()


@pytest.mark.parametrize("outcome", [(), (7, 8, 9, NEW, NEW), (8, NEW)])
def test_an_impossible_outcome_is_refused_and_changes_nothing(outcome: tuple[int, ...]) -> None:
    scheduler = build()
    sequence = decoding_sequence(scheduler)
    sequence.drafted = (7, 8, 9)
    row = scheduler.schedule().rows[0]
    with pytest.raises(ValueError, match=r"drafted ones"):
        scheduler.commit(row, outcome)
    assert (sequence.num_tokens, sequence.num_computed) == (6, 5)


def test_outcomes_of_chunks_of_old_rows_and_past_the_end_are_refused() -> None:
    scheduler = build(budget=8)
    sequence = make(10, max_tokens=2)
    add(scheduler, sequence)
    chunk = scheduler.schedule().rows[0]
    with pytest.raises(ValueError, match="does not sample"):
        scheduler.commit(chunk, (NEW,))
    scheduler.commit(chunk, ())
    with pytest.raises(ValueError, match="not from the latest"):
        scheduler.commit(chunk, ())
    for _ in range(2):
        scheduler.commit(scheduler.schedule().rows[0], (NEW,))
    with pytest.raises(ValueError, match="past its end"):
        scheduler.commit(scheduler.schedule().rows[0], (NEW,))
