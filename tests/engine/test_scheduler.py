from collections.abc import Callable

import pytest

from ssd.engine.scheduler import Schedule, ScheduledRow, Scheduler, SchedulerLimits
from ssd.engine.sequence import Sequence, SequenceStatus
from ssd.kvcache.block_manager import BlockManager, IntegrityError
from tests.kvcache.matching import num_matched

BLOCK = 4
NEW = 100  # the token a test's target always emits


def build(
    num_blocks: int = 32,
    *,
    max_num_seqs: int = 4,
    budget: int = 64,
    max_model_len: int = 64,
    chunked: bool = True,
    cache_generated: bool = True,
    caching: bool = True,
) -> Scheduler:
    limits = SchedulerLimits(max_num_seqs, budget, max_model_len, chunked, cache_generated)
    return Scheduler(limits, BlockManager(num_blocks, BLOCK, enable_prefix_caching=caching))


def make(
    num_prompt: int, *, first: int = 0, max_tokens: int = 16, parent: Sequence | None = None
) -> Sequence:
    prompt = range(first, first + num_prompt)
    parent_id = None if parent is None else parent.seq_id
    return Sequence(
        f"from {first}",
        prompt,
        max_tokens=max_tokens,
        parent_id=parent_id,
        group="" if parent is None else parent.group,
    )


def add(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)


def step(scheduler: Scheduler, num_accepted: int = 0) -> Schedule:
    """Schedule, take `num_accepted` drafts of every row, finish what is at its end."""
    schedule = scheduler.schedule()
    for row in schedule.rows:
        accepted = row.tokens[row.num_known :][:num_accepted]
        scheduler.commit(row, (*accepted, NEW) if row.samples else ())
        if row.samples and not row.sequence.num_remaining(scheduler.limits.max_model_len):
            scheduler.finish(row.sequence)
    scheduler.check_integrity()
    return schedule


def shape(schedule: Schedule) -> list[tuple[int, int, int, bool, bool]]:
    return [(row.start, row.num_known, row.num_drafted, row.samples, row.generated) for row in schedule.rows]


def row_of(schedule: Schedule, sequence: Sequence) -> ScheduledRow | None:
    return next((row for row in schedule.rows if row.sequence is sequence), None)


# --- the door ---


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "remedy"),
    [
        (0, 1, "at least one token"),
        (64, 1, "shorten the prompt"),
        (4, 0, "at least 1"),
        (40, 9, "lower max_tokens"),
    ],
)
def test_what_can_never_run_is_refused_with_a_remedy(num_prompt: int, max_tokens: int, remedy: str) -> None:
    scheduler = build(num_blocks=12)
    with pytest.raises(ValueError, match=remedy):
        scheduler.add(make(num_prompt, max_tokens=max_tokens))
    assert not scheduler.has_work
    scheduler.check_integrity()


def test_max_model_len_bounds_what_must_fit_into_the_pool() -> None:
    add(build(num_blocks=16, max_model_len=64), make(10, max_tokens=10**6))


def test_a_sequence_is_added_once() -> None:
    scheduler, sequence = build(), make(4)
    add(scheduler, sequence)
    with pytest.raises(ValueError, match="added before"):
        scheduler.add(sequence)
    scheduler.finish(sequence)
    with pytest.raises(ValueError, match="added before"):
        scheduler.add(sequence)


def test_a_child_must_have_its_parents_prompt() -> None:
    scheduler, parent = build(), make(4)
    add(scheduler, parent)
    with pytest.raises(ValueError, match="differ in prompt"):
        scheduler.add(make(5, parent=parent))


@pytest.mark.parametrize("limits", [(0, 8, 8), (4, 3, 8), (1, 8, 1)])
def test_limits_are_validated(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        SchedulerLimits(*limits)


# --- rows ---


def test_decoding_comes_before_prompts_and_prompts_share_the_rest() -> None:
    scheduler = build(budget=10)
    first, long, short = make(3), make(20, first=30), make(3, first=60)
    add(scheduler, first)
    step(scheduler)
    add(scheduler, long, short)
    schedule = step(scheduler)
    assert [row.sequence for row in schedule.rows] == [first, long, short]
    assert shape(schedule) == [(3, 1, 0, True, True), (0, 6, 0, False, False), (0, 3, 0, True, False)]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """Others wait for a chunk, not for the prompt."""
    scheduler = build(96, budget=64, max_model_len=256)
    long, short, other = make(200, first=300), make(5), make(6, first=60)
    add(scheduler, long)
    assert shape(step(scheduler)) == [(0, 64, 0, False, False)]
    add(scheduler, short, other)
    schedule = step(scheduler)
    assert [row.sequence for row in schedule.rows] == [long, short, other]
    # Room is kept for those who come later, and what they leave is used all the same.
    assert [len(row.tokens) for row in schedule.rows] == [53, 5, 6]
    assert short.is_decoding
    assert other.is_decoding


def test_long_prompts_share_a_step_and_each_moves_on() -> None:
    scheduler = build(256, budget=128, max_model_len=512, max_num_seqs=8, caching=False)
    add(scheduler, *(make(200, first=1000 * number, max_tokens=2) for number in range(6)))
    assert [len(row.tokens) for row in step(scheduler).rows] == [104, 24]
    num_steps = 1
    while scheduler.has_work:
        schedule = step(scheduler)
        num_steps += 1
        num_left = sum(max(0, each.num_prompt - each.num_computed) for each in scheduler._running)
        is_full = sum(len(row.tokens) for row in schedule.rows) == 128
        assert is_full or not num_left  # Nothing is left unused that a prompt could have taken.
    assert num_steps < 20


def test_a_short_prompt_does_not_wait_for_many_long_ones() -> None:
    """Two are read in parts at a time, and whoever comes behind them passes those that wait."""
    scheduler = build(512, budget=128, max_model_len=1024, max_num_seqs=16, caching=False)
    add(scheduler, *(make(600, first=1000 * number, max_tokens=2) for number in range(1, 6)))
    step(scheduler)
    short = make(5)
    add(scheduler, short)
    assert row_of(step(scheduler), short) is not None
    middling = make(100, first=200)
    add(scheduler, middling)
    for _ in range(5):
        step(scheduler)
    assert middling.is_decoding
    while scheduler.has_work:
        step(scheduler)


def test_one_request_of_many_texts_leaves_others_half_of_the_seats() -> None:
    """Who asks for sixteen texts at once is one of those who ask."""
    scheduler = build(64, max_num_seqs=8)
    scheduler.max_num_further = 4
    first = make(4, max_tokens=3)
    many = [first, *(make(4, parent=first, max_tokens=3) for _ in range(9))]
    add(scheduler, *many)
    step(scheduler)
    assert len(step(scheduler).rows) == 1 + 4
    others = [make(4, first=10 * number, max_tokens=2) for number in range(1, 4)]
    add(scheduler, *others)
    assert {row.sequence for row in step(scheduler).rows} >= set(others)
    while scheduler.has_work:
        step(scheduler)
    assert all(each.num_generated == 3 for each in many)


def test_further_texts_of_one_wait_where_others_are_there() -> None:
    """Of each group the oldest moves in every step, and of the others as many as may."""
    scheduler = build(64, max_num_seqs=16)
    scheduler.max_moving_further = 2
    first = make(4, max_tokens=6)
    many = [first, *(make(4, parent=first, max_tokens=6) for _ in range(7))]
    add(scheduler, *many)
    step(scheduler)
    assert len(step(scheduler).rows) == 8  # Nobody else is there.
    other = make(4, first=50, max_tokens=9)
    add(scheduler, other)
    while other.status is not SequenceStatus.FINISHED:
        rows = [row.sequence for row in step(scheduler).rows]
        assert rows[0] is next(each for each in many if each in rows)
        assert other in rows
        assert len(rows) <= 1 + 2 + 1
    while scheduler.has_work:
        step(scheduler)
    assert all(each.num_generated == 6 for each in many)


def test_decode_never_starves_behind_an_older_prompt() -> None:
    # A child is admitted after a younger request, and its prompt must not shut that one out.
    scheduler = build(budget=4, caching=False, max_num_seqs=3)
    parent = make(20, max_tokens=1)
    child, young = make(20, parent=parent), make(2, first=70)
    add(scheduler, parent, child, young)
    while parent.status is not SequenceStatus.FINISHED:
        step(scheduler)
    while not young.is_decoding:
        step(scheduler)
    while child.num_computed < 20:
        schedule = step(scheduler)
        assert row_of(schedule, young) is not None or young.status is SequenceStatus.FINISHED


def test_oversized_whole_prompt_runs_alone_and_decoding_waits_one_step_only() -> None:
    scheduler = build(budget=8, chunked=False)
    decoding = make(3, max_tokens=40)
    add(scheduler, decoding)
    step(scheduler)
    add(scheduler, make(20, first=20), make(20, first=40))
    kinds = [[len(row.tokens) for row in step(scheduler).rows] for _ in range(4)]
    assert kinds == [[20], [1, 1], [20], [1, 1, 1]]


def test_max_num_seqs_is_kept() -> None:
    scheduler = build(max_num_seqs=2)
    add(scheduler, *(make(3, first=10 * i, max_tokens=2) for i in range(4)))
    assert [len(step(scheduler).rows) for _ in range(4)] == [2, 2, 2, 2]
    assert not scheduler.has_work


# --- finish ---


def test_released_ids_are_not_used_again_and_late_outcomes_have_no_owner() -> None:
    # Known fault elsewhere: a released id answering for its successor.
    scheduler, sequence = build(), make(5)
    add(scheduler, sequence)
    row = scheduler.schedule().rows[0]
    scheduler.finish(sequence)
    successor = make(5, first=50)
    add(scheduler, successor)
    assert successor.seq_id > sequence.seq_id
    scheduler.commit(row, (NEW,))
    scheduler.finish(sequence)
    assert (sequence.num_generated, successor.num_generated, scheduler.num_waiting) == (0, 0, 1)
    assert num_matched(scheduler._blocks, range(6)) == 0
    scheduler.check_integrity()


# --- check_integrity itself ---


def break_lose(scheduler: Scheduler) -> None:
    scheduler._waiting.clear()


def break_order(scheduler: Scheduler) -> None:
    scheduler._running.reverse()


def break_computed(scheduler: Scheduler) -> None:
    scheduler._running[0].num_computed = scheduler._running[0].num_tokens


def break_waiting(scheduler: Scheduler) -> None:
    scheduler._waiting[0].num_computed = 1


def break_status(scheduler: Scheduler) -> None:
    scheduler._waiting.pop().status = SequenceStatus.FINISHED


def break_tables(scheduler: Scheduler) -> None:
    scheduler._blocks.free(scheduler._running[0].seq_id)


BREAKS = [break_lose, break_order, break_computed, break_waiting, break_status, break_tables]


@pytest.mark.parametrize("damage", BREAKS)
def test_integrity_check_sees(damage: Callable[[Scheduler], None]) -> None:
    scheduler = build(max_num_seqs=2)
    add(scheduler, *(make(5, first=10 * i) for i in range(3)))
    step(scheduler)
    damage(scheduler)
    with pytest.raises(IntegrityError):
        scheduler.check_integrity()
