"""Calibration believes the model at first, and what happens later."""

import numpy as np
import pytest

from ssd.draft.protocol.messages import Floats
from tests.draft.tree.oracle.calibration import Calibration, Observation


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
