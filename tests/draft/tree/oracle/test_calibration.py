"""Calibration believes the model at first, and what happens later."""

import numpy as np
import pytest

from ssd.draft.protocol.messages import Floats
from tests.draft.tree.oracle.calibration import MAX_RANKS, Calibration, Observation


def raws(*chances: float) -> Floats:
    return np.log(np.array(chances, dtype=np.float32))


def taught(chances: list[float], rates: list[float], count: int, seed: int = 0) -> Calibration:
    """A calibration that has seen which child was taken so many times, by the given rates."""
    calibration, rng = Calibration(), np.random.default_rng(seed)
    outcomes = rng.choice(len(rates) + 1, size=count, p=[*rates, 1 - sum(rates)])
    for taken in outcomes.tolist():
        calibration.learn(Observation(raws(*chances), taken if taken < len(rates) else None))
    return calibration


def test_believes_the_model_at_first() -> None:
    said = [0.6, 0.25, 0.1, 0.02]
    assert np.exp(Calibration().logprobs(raws(*said))) == pytest.approx(said, rel=1e-5)


def test_a_few_observations_change_little() -> None:
    calibration = taught([0.6, 0.2], [0.0, 0.0], count=2)
    assert 0.4 < np.exp(calibration.logprobs(raws(0.6, 0.2)))[0] < 0.6


def test_converges_to_what_happens_rank_by_rank() -> None:
    said, real = [0.9, 0.05, 0.02], [0.5, 0.3, 0.15]
    calibration = taught(said, real, count=3000)
    assert np.exp(calibration.logprobs(raws(*said))) == pytest.approx(real, abs=0.08)


def test_ranks_and_bins_are_learned_apart() -> None:
    calibration = taught([0.95, 0.02], [0.2, 0.7], count=2000)
    # What the first child with 0.95 did says nothing of one with 0.3, nor of a second with 0.95.
    assert np.exp(calibration.logprobs(raws(0.3)))[0] == pytest.approx(0.3, rel=1e-4)
    assert np.exp(calibration.logprobs(raws(0.3, 0.95)))[1] == pytest.approx(0.95, rel=1e-4)
    assert np.exp(calibration.logprobs(raws(0.95)))[0] == pytest.approx(0.2, abs=0.08)


def test_forgets_what_was_long_ago() -> None:
    calibration = taught([0.9], [1.0], count=2000)
    assert np.exp(calibration.logprobs(raws(0.9)))[0] > 0.97
    for _ in range(1500):
        calibration.learn(Observation(raws(0.9), None))
    assert np.exp(calibration.logprobs(raws(0.9)))[0] < 0.1


def test_gives_probabilities_whatever_the_model_said() -> None:
    calibration = taught([1.0, 0.001], [1.0, 0.0], count=900)
    extreme = np.array([0.0, -3e38, -np.inf, 1e-6], dtype=np.float32)
    found = calibration.logprobs(extreme)
    assert found.dtype == np.float32
    assert (found <= 0).all()
    assert (found >= np.log(1e-4) - 1e-4).all()


def test_later_ranks_share_one_rate() -> None:
    """Beyond the last rank that is told apart every child counts: else their rate comes out too high."""
    many = [0.3] * (MAX_RANKS + 4)
    calibration = Calibration()
    for taken in [MAX_RANKS, *[None] * 5] * 60:
        calibration.learn(Observation(raws(*many), taken))
    found = np.exp(calibration.logprobs(raws(*many)))
    assert found[-1] == pytest.approx(1 / 6 / 5, abs=0.02)


def test_no_children_teach_nothing() -> None:
    calibration = Calibration()
    calibration.learn(Observation(raws(), None))
    assert calibration.logprobs(raws()).shape == (0,)
