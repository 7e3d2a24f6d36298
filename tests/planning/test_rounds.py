"""Closed forms of rounds, by hand and against a simulation of the same rule."""

import random

import pytest

from ssd.planning.rounds import (
    FAN_OUT,
    Pair,
    ar_rate,
    best_sd,
    best_ssd,
    hit_rate,
    sd_rate,
    ssd_rate,
    ssd_roof,
    tokens_a_round,
)
from ssd.planning.times import Forward, PairTimes

TIMES = PairTimes(Forward(10.0), Forward(1.0))


def test_tokens_a_round() -> None:
    assert tokens_a_round(0.5, 2) == pytest.approx(1.75)
    assert tokens_a_round(1.0, 5) == 6


def test_sd_takes_turns() -> None:
    assert sd_rate(TIMES, 1.0, 4) == pytest.approx(5 / 14)
    assert best_sd(TIMES, 0.05).lookahead == 1
    assert best_sd(TIMES, 0.95).lookahead > best_sd(TIMES, 0.7).lookahead


def test_hit_rate_by_counting() -> None:
    acceptance, coverage, lookahead = 0.7, 0.6, 3
    draw, hits, trials = random.Random(0), 0, 40_000
    for _ in range(trials):
        accepted = 0
        while accepted < lookahead and draw.random() < acceptance:
            accepted += 1
        is_first_guess = accepted == lookahead and draw.random() < acceptance
        hits += is_first_guess or draw.random() < coverage
    assert hits / trials == pytest.approx(hit_rate(acceptance, coverage, lookahead), abs=0.01)


def test_rows_beyond_the_memory_bound_take_longer() -> None:
    compute_bound = PairTimes(Forward(10.0, per_row=1.0), Forward(1.0))
    assert sd_rate(compute_bound, 0.9, 4, batch=1) == sd_rate(TIMES, 0.9, 4, batch=1)
    assert sd_rate(compute_bound, 0.9, 4, batch=16) < sd_rate(TIMES, 0.9, 4, batch=16) / 3


def test_a_miss_costs_a_wait_or_the_speculation_whichever_is_less() -> None:
    rate = ssd_rate(TIMES, 5.0, 1.0, 4, width=12)
    assert rate == pytest.approx(5 / 10)
    # Four draft steps in 14 seconds, or one token in 10.
    assert ssd_rate(TIMES, 5.0, 0.0, 4, width=12) == pytest.approx(5 / 14)
    slow_draft = PairTimes(Forward(10.0), Forward(10.0))
    assert ssd_rate(slow_draft, 5.0, 0.0, 4, width=12) == pytest.approx(5 / 90)
    assert ssd_rate(slow_draft, 2.0, 0.9, 4, width=12) == pytest.approx(1.9 / 50)


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("acceptance", [0.5, 0.9])
@pytest.mark.parametrize("draft", [0.05, 0.45])
def test_ssd_stays_between_plain_decoding_and_its_roof(acceptance: float, draft: float, batch: int) -> None:
    times = PairTimes(Forward(1.0), Forward(draft))
    found = best_ssd(times, Pair(acceptance, 0.75), batch=batch).rate
    assert ar_rate(times, batch=batch) < found < ssd_roof(times, acceptance, batch=batch)


def test_sequences_of_a_batch_share_the_rows_of_a_draft_step() -> None:
    times = PairTimes(Forward(1.0), Forward(0.1))
    alone, many = (best_ssd(times, Pair(0.8, 0.75), batch=batch).rate / batch for batch in (1, 32))
    assert many < 0.9 * alone


def test_coverage_grows_with_the_guesses_and_is_the_given_one_at_three() -> None:
    pair = Pair(0.8, 0.75)
    assert pair.coverage_of(FAN_OUT) == pair.coverage_of(10) == pytest.approx(0.75)
    assert 0 == pair.coverage_of(0) < pair.coverage_of(1) < pair.coverage_of(2) < 0.75
    with pytest.raises(ValueError, match="from 0 to 1"):
        Pair(1.2, 0.5)
