"""A draft that is never right rests, for longer each time; one that is right never does."""

import pytest

from ssd.draft.client.controller import AutoDisable


def rounds_until_rest(worth: AutoDisable, accepted: int = 0) -> int:
    for count in range(1000):
        if worth.is_resting:
            return count
        worth.note_round(accepted)
    return 1000


def steps_of_rest(worth: AutoDisable) -> int:
    count = 0
    while worth.is_resting:
        worth.note_step()
        count += 1
    return count


def test_a_draft_that_is_never_right_rests_after_some_rounds_and_for_longer_each_time() -> None:
    worth = AutoDisable()
    assert 20 < rounds_until_rest(worth) < 26
    assert steps_of_rest(worth) == 128
    assert 20 < rounds_until_rest(worth) < 26
    assert steps_of_rest(worth) == 256
    for _ in range(9):
        rounds_until_rest(worth)
        last = steps_of_rest(worth)
    assert last == 8192


def test_a_draft_that_is_right_never_rests_and_success_is_remembered() -> None:
    worth = AutoDisable()
    assert rounds_until_rest(worth, accepted=1) == 1000
    rounds_until_rest(worth)
    assert steps_of_rest(worth) == 128
    assert rounds_until_rest(worth, accepted=2) == 1000
    rounds_until_rest(worth)
    assert steps_of_rest(worth) == 128


@pytest.mark.parametrize(("every", "rests"), [(10, False), (30, True)])
def test_where_the_border_lies(every: int, rests: bool) -> None:
    worth, has_rested = AutoDisable(), False
    for number in range(500):
        worth.note_round(float(number % every == 0))
        has_rested |= worth.is_resting
    assert has_rested is rests
