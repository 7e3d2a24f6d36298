"""Shared drafts: the queueing formula against the simulation, and against cases known by heart."""

import pytest

from ssd.planning.pool import Pool, drafts_needed, repairman
from tests.planning.pool_simulation import simulate_pool


def test_one_target_never_waits() -> None:
    load = repairman(Pool(1, 1, think=3.0, service=1.0))
    assert load.wait == pytest.approx(0.0)
    assert load.utilisation == pytest.approx(0.25)
    assert load.speed == pytest.approx(1.0)


def test_two_targets_and_one_draft_by_hand() -> None:
    # Birth and death: weights 1, 2r, 2r² with r = service / think = 1.
    load = repairman(Pool(2, 1, think=1.0, service=1.0))
    assert load.utilisation == pytest.approx(1 - 1 / 5)
    assert load.wait == pytest.approx((2 / 5 + 2 * 2 / 5) / (4 / 5) - 1)


@pytest.mark.parametrize(("targets", "drafts"), [(4, 1), (16, 8), (40, 20), (200, 95)])
def test_the_formula_is_what_a_simulation_gives(targets: int, drafts: int) -> None:
    pool = Pool(targets, drafts, think=0.018, service=0.016)
    formula, simulated = repairman(pool), simulate_pool(pool, spread="exponential")
    assert simulated.speed == pytest.approx(formula.speed, rel=0.03)
    assert simulated.utilisation == pytest.approx(formula.utilisation, rel=0.03)


def test_times_that_do_not_vary_wait_less() -> None:
    pool = Pool(16, 8, think=0.018, service=0.016)
    assert simulate_pool(pool, spread="constant").wait < 0.6 * repairman(pool).wait


def test_as_many_drafts_as_needed_and_no_more() -> None:
    for targets in (1, 10, 333):
        count = drafts_needed(targets, 0.018, 0.016)
        assert repairman(Pool(targets, count, 0.018, 0.016)).speed >= 0.95
        assert count == 1 or repairman(Pool(targets, count - 1, 0.018, 0.016)).speed < 0.95
    # Large pools share better.
    assert drafts_needed(1000, 0.018, 0.016) / 1000 < drafts_needed(10, 0.018, 0.016) / 10


def test_thousands_of_targets_are_no_trouble() -> None:
    load = repairman(Pool(20_000, 9_500, think=0.018, service=0.016))
    assert 0.9 < load.utilisation <= 1.0


def test_empty_pools_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Pool(0, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="seconds above 0"):
        Pool(1, 1, 1.0, 0.0)
