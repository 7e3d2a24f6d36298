"""Drawn texts: their rates are what was asked for, and their chances mean what they say."""

import numpy as np
import pytest

from benchmarks.drawn_text import drawn_chances, drawn_ranks


@pytest.mark.parametrize(
    ("acceptance", "coverage"), [(0.5, 0.3), (0.8, 0.75), (0.95, 1.0), (1.0, 0.5), (0.0, 0.0)]
)
def test_drawn_rates_are_met(acceptance: float, coverage: float) -> None:
    ranks = drawn_ranks(acceptance, coverage, length=1000, draw=np.random.default_rng(0))
    assert (ranks == 0).mean() == pytest.approx(acceptance, abs=0.002)
    among_three = ((ranks >= 1) & (ranks <= 3)).sum() / max(1, (ranks != 0).sum())
    assert among_three == pytest.approx(coverage if acceptance < 1 else 0.0, abs=0.02)


def test_chances_are_calibrated() -> None:
    """Where a guess is said to be right with some chance, it is right that often."""
    draw = np.random.default_rng(1)
    ranks = drawn_ranks(0.8, 0.7, length=40_000, draw=draw)
    chances = drawn_chances(ranks, 0.8, 0.7, draw=draw)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.95), (0.95, 1.0)):
        said = (chances[:, 0] >= low) & (chances[:, 0] < high)
        assert (ranks[said] == 0).mean() == pytest.approx(chances[said, 0].mean(), abs=0.02)
    assert (ranks == 1).mean() == pytest.approx(chances[:, 1].mean(), abs=0.01)
