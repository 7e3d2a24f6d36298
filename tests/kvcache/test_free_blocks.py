import pytest

from ssd.kvcache.free_blocks import MAX_RUNS_SCANNED, FreeBlocks


def take_all(free: FreeBlocks) -> None:
    after = None
    while free.num_free:
        after = free.take(after=after)


def test_first_place_of_an_empty_pool_is_its_beginning() -> None:
    assert FreeBlocks(8).take(after=None) == 0


def test_growth_takes_the_neighbour() -> None:
    free = FreeBlocks(8)
    first = free.take(after=None)
    assert [free.take(after=first), free.take(after=first + 1)] == [1, 2]


def test_new_place_is_the_middle_of_the_longest_run() -> None:
    free = FreeBlocks(16)
    free.take(after=None)
    assert free.take(after=None) == 1 + 15 // 2


def test_a_large_request_moves_towards_the_start_of_its_run() -> None:
    free = FreeBlocks(16)
    free.take(after=None)
    assert free.take(after=None, num_wanted=12) == 4


def test_a_request_longer_than_every_run_starts_at_the_start_of_the_longest() -> None:
    free = FreeBlocks(16)
    free.take(after=None)
    assert free.take(after=None, num_wanted=99) == 1


def test_blocked_or_last_neighbour_falls_back_to_the_longest_run() -> None:
    free = FreeBlocks(4)
    take_all(free)
    free.put(1)
    assert free.take(after=3) == 1
    free.put(2)
    assert free.take(after=0) == 2


def test_put_twice_is_refused_and_empty_take_too() -> None:
    free = FreeBlocks(2)
    with pytest.raises(ValueError, match="already free"):
        free.put(0)
    take_all(free)
    with pytest.raises(LookupError):
        free.take(after=None)


def test_a_scattered_pool_still_yields_every_block_once() -> None:
    num_blocks = 4 * MAX_RUNS_SCANNED
    free = FreeBlocks(num_blocks)
    take_all(free)
    for block in range(0, num_blocks, 2):
        free.put(block)
    taken = [free.take(after=None) for _ in range(num_blocks // 2)]
    assert sorted(taken) == list(range(0, num_blocks, 2))
    assert free.num_free == 0
