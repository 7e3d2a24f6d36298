"""Texts as ranks of guesses: their rates are what was asked for, and their chances mean what they say."""

import numpy as np
import pytest

from ssd.planning.text import MISSED, Text, drawn_text, replayed_text


@pytest.mark.parametrize(
    ("acceptance", "coverage"), [(0.5, 0.3), (0.8, 0.75), (0.95, 1.0), (1.0, 0.5), (0.0, 0.0)]
)
def test_drawn_rates_are_met(acceptance: float, coverage: float) -> None:
    text = drawn_text(acceptance, coverage, length=1000, seed=0)
    assert text.acceptance == pytest.approx(acceptance, abs=0.002)
    among_three = ((text.ranks >= 1) & (text.ranks <= 3)).sum() / max(1, (text.ranks != 0).sum())
    assert among_three == pytest.approx(coverage if acceptance < 1 else 0.0, abs=0.02)


def test_chances_are_calibrated() -> None:
    """Where a guess is said to be right with some chance, it is right that often."""
    text = drawn_text(0.8, 0.7, length=40_000, seed=1)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.95), (0.95, 1.0)):
        said = (text.chances[:, 0] >= low) & (text.chances[:, 0] < high)
        assert (text.ranks[said] == 0).mean() == pytest.approx(text.chances[said, 0].mean(), abs=0.02)
    assert (text.ranks == 1).mean() == pytest.approx(text.chances[:, 1].mean(), abs=0.01)
    assert (
        text.chances.sum(axis=1).max() <= 1.35
    )  # coverage beyond three guesses may exceed what is left a little


def test_tokens_a_round_by_hand() -> None:
    text = replayed_text([0, 0, 1, 0, MISSED, 0, 0, 0], seed=0)
    # 0 0 [1] | 0 [missed] | 0 0 [0], with two guesses a round
    assert text.tokens_a_round(2) == pytest.approx(8 / 3)
    assert text.tokens_a_round(1) == pytest.approx(8 / 5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        drawn_text(1.2, 0.5, length=10, seed=0)
    with pytest.raises(ValueError, match="same places"):
        Text(np.zeros((3, 8)), np.zeros(2, dtype=np.int64), np.zeros(3, dtype=np.int64))
