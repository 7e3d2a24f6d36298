"""The controller carries what pays, by times and chances, and nothing where nothing does."""

import random
from collections.abc import Callable

import pytest

from ssd.draft.client.controller import Controller, VerifyTimes
from ssd.ngram import ngram_guess


def measured(times: dict[int, float], rounds: int = 30) -> Controller:
    controller = Controller()
    for _ in range(rounds):
        for rows, seconds in times.items():
            controller.times.note(rows, seconds, is_speculating=rows > 1)
    return controller


def test_rows_that_are_dear_are_found_out_though_all_steps_are_alike() -> None:
    """A target bound by arithmetic, and a draft that always has a whole speculation ready."""
    controller, chances = Controller(), [tuple(0.7**depth for depth in range(1, 9))]
    carried = []
    for _ in range(400):
        (length,) = controller.choose(chances, 1)
        controller.times.note(1 + length, 0.1 * (1 + length), is_speculating=length > 0)
        carried.append(length)
    assert sum(carried[50:]) / 350 < 0.1


def carried_and_gained(seconds: Callable[[int], float], rate: float) -> tuple[list[int], float]:
    """Lengths of 400 steps whose drafted tokens are right at a rate; from the 64th on, × plain decoding."""
    controller, draw = Controller(), random.Random(3)
    chances = [tuple(rate**depth for depth in range(1, 9))]
    lengths, gained, spent = [], 0, 0.0
    for place in range(400):
        (length,) = controller.choose(chances, 1)
        lengths.append(length)
        accepted = 0
        while accepted < length and draw.random() < rate:
            accepted += 1
        took = seconds(1 + length) * draw.uniform(0.85, 1.15)
        controller.times.note(1 + length, took, is_speculating=length > 0)
        if place >= 64:
            gained, spent = gained + 1 + accepted, spent + took
    return lengths, gained * seconds(1) / spent


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.9])
def test_a_target_whose_second_row_is_the_dear_one_decodes_plainly(rate: float) -> None:
    """Emulated bfloat16: no line through such times tells what a plain step takes."""
    lengths, gain = carried_and_gained(lambda rows: 1.0 if rows == 1 else 1.5 + 0.95 * rows, rate)
    assert gain > 0.95
    assert sum(lengths[64:]) / 336 < 0.1


def test_a_dear_second_row_is_paid_where_many_follow_for_nothing() -> None:
    lengths, gain = carried_and_gained(lambda rows: 1.0 if rows == 1 else 2.0, 0.9)
    assert gain > 2.7
    assert sum(lengths[64:]) / 336 > 7


def test_noise_does_not_make_rows_dear() -> None:
    controller, draw, chances = Controller(), random.Random(2), [tuple(0.8**depth for depth in range(1, 9))]
    carried = []
    for _ in range(400):
        (length,) = controller.choose(chances, 1)
        controller.times.note(1 + length, 0.1 * draw.uniform(0.7, 1.3), is_speculating=length > 0)
        carried.append(length)
    assert sum(carried[20:]) / 380 > 7


def test_no_other_number_of_tokens_yields_more() -> None:
    """Against all numbers of them, also where the first one is dear and the others are not."""
    draw = random.Random(5)
    for _ in range(200):
        batch, slope, jump = draw.randint(1, 6), draw.choice([0.0, 0.01, 0.04]), draw.choice([0.0, 0.1])
        controller = Controller()
        for _ in range(200):
            rows, drafted = draw.randint(1, 6), draw.choice([0, 1, 5])
            seconds = 0.1 + slope * (rows + drafted) + jump * (drafted > 0)
            controller.times.note(rows + drafted, seconds, is_speculating=drafted > 0)
        paths = [sorted((draw.uniform(0.05, 1) for _ in range(8)), reverse=True) for _ in range(batch)]
        offered = sorted((chance for path in paths for chance in path), reverse=True)
        cost = controller.times.cost()
        rates = [
            (batch + sum(offered[:count])) / cost.seconds(batch, count) for count in range(len(offered) + 1)
        ]
        carried = sum(controller.choose(paths, batch))
        assert rates[carried] == pytest.approx(max(rates), rel=1e-12)


def test_the_best_chances_of_a_batch_come_first() -> None:
    controller = measured({8: 1.0, 16: 1.25, 32: 1.75})
    lengths = controller.choose([(0.95, 0.9, 0.85), (0.3, 0.1, 0.05)], 2)
    assert lengths[0] == 3
    assert lengths[1] <= 1


def test_a_slow_outlier_does_not_break_the_line() -> None:
    controller = Controller()
    controller.times.note(9, 5.0, is_speculating=True)
    for _ in range(10):
        controller.times.note(5, 0.2, is_speculating=True)
    assert controller.choose([], 0) == []
    assert all(controller.times.expected(rows) > 0 for rows in range(20))


def test_times_are_told_from_noise() -> None:
    times, draw = VerifyTimes(), random.Random(1)
    for _ in range(300):
        rows = draw.randint(1, 64)
        times.note(rows, (0.1 + 0.002 * rows) * draw.uniform(0.8, 1.2), is_speculating=draw.random() < 0.5)
    cost = times.cost()
    assert cost.fixed == pytest.approx(0.1, rel=0.3)
    assert cost.slope == pytest.approx(0.002, rel=0.4)
    assert cost.jump < 0.02


def test_waits_are_bounded_by_what_they_gain_and_tried_again() -> None:
    controller = measured({1: 0.2, 2: 0.2})
    longest = controller.longest_wait(1, draft_step=0.05)
    assert 0 < longest < 0.2
    for _ in range(5):
        controller.note_wait(1.0)
    assert controller.longest_wait(1, draft_step=0.05) == 0
    assert any(controller.longest_wait(1, draft_step=0.05) > 0 for _ in range(200))


def test_no_wait_for_a_draft_that_is_always_wrong() -> None:
    controller = measured({1: 0.2, 2: 0.2})
    for _ in range(200):
        controller.note_firsts([False])
    assert controller.longest_wait(1, draft_step=0.05) == 0


def test_ngrams_follow_the_latest_occurrence() -> None:
    assert ngram_guess([1, 2, 3, 4, 5, 1, 2, 3, 9, 8], [1, 2, 3], 2) == (9, 8)
    assert ngram_guess([7, 1, 2], [6, 1, 2], 4) == (6, 1, 2)
    assert ngram_guess([1, 2, 3], [4, 5], 4) == ()
    assert ngram_guess([], [1], 4) == ()


TREES = [(0.8, 0.64, 0.5, 0.18, 0.15, 0.14)]
CHAINS = [(0.8, 0.64, 0.5)]


def taught(surcharge: float, slope: float = 0.0) -> Controller:
    """By steps of all kinds, on a target whose trees take so much longer beside their rows."""
    controller = Controller()
    for _ in range(30):
        for rows, has_trees in ((1, False), (4, False), (7, True), (4, True)):
            seconds = 0.1 + slope * rows + surcharge * has_trees
            controller.times.note(rows, seconds, is_speculating=rows > 1, has_trees=has_trees)
    return controller


def test_where_rows_are_free_trees_are_taken_whole() -> None:
    assert taught(0.0).choose_form(TREES, CHAINS, 1) == ([6], True)


def test_where_rows_cost_only_the_likely_ones_are_taken() -> None:
    lengths, has_trees = taught(0.0, slope=0.02).choose_form(TREES, CHAINS, 1)
    assert (lengths, has_trees) == ([3], False)


def test_where_trees_cost_more_than_they_yield_chains_are_taken() -> None:
    assert taught(0.05).times.cost().branching == pytest.approx(0.05, rel=0.1)
    assert taught(0.05).choose_form(TREES, CHAINS, 1) == ([3], False)
    assert taught(0.001).choose_form(TREES, CHAINS, 1) == ([6], True)


@pytest.mark.parametrize(("surcharge", "least", "most"), [(0.0, 0.7, 1.0), (0.05, 0.0, 0.15)])
def test_what_trees_cost_is_found_out_by_taking_them(surcharge: float, least: float, most: float) -> None:
    controller, draw, taken = Controller(), random.Random(4), 0
    for place in range(400):
        [length], has_trees = controller.choose_form(TREES, CHAINS, 1)
        seconds = (0.1 + surcharge * has_trees * (length > 0)) * draw.uniform(0.9, 1.1)
        controller.times.note(1 + length, seconds, is_speculating=length > 0, has_trees=has_trees)
        taken += has_trees and place >= 100
    assert least <= taken / 300 <= most


def test_no_token_below_the_least_chance_is_worth_its_row() -> None:
    draw = random.Random(6)
    for slope in (0.0, 0.005, 0.02, 0.1):
        controller = taught(0.0, slope)
        least = controller.least_chance(1)
        for _ in range(50):
            path = sorted((draw.uniform(0.0, 1) for _ in range(8)), reverse=True)
            assert controller.choose([path], 1)[0] <= sum(chance > least for chance in path)
