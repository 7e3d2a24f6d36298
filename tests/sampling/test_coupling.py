"""Two models that draw with the same noise agree as often as the closed form says.

P(match) = Σ_j 1/Σ_i max(p_i/p_j, q_i/q_j), between (1 − TV)/(1 + TV) and 1 − TV. The latter is what ratio
acceptance reaches, so the difference is what coupled acceptance costs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.sampling.noise import gumbel_noise

DRAWS = 1_000_000
LIMIT = 4.0  # standard deviations; the seed is fixed, so it holds once and for all

PAIRS = [
    ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]),
    ([0.25, 0.25, 0.25, 0.25], [0.97, 0.01, 0.01, 0.01]),
    ([0.6, 0.4], [0.4, 0.6]),
    ([0.4, 0.3, 0.2, 0.05, 0.05], [0.05, 0.05, 0.2, 0.3, 0.4]),
    ([0.8, 0.15, 0.05], [0.8, 0.15, 0.05]),
]


def closed_form(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    return sum(1 / float(np.maximum(p / p[j], q / q[j]).sum()) for j in range(len(p)))


@pytest.fixture(scope="module")
def noise() -> torch.Tensor:
    return gumbel_noise([2024] * DRAWS, range(DRAWS), 5)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_matches_as_often_as_the_closed_form_says(
    target: list[float], draft: list[float], noise: torch.Tensor
) -> None:
    p, q = np.array(target), np.array(draft)
    drawn = [(noise[:, : len(p)] + torch.tensor(each).log().float()).argmax(1) for each in (target, draft)]
    matches = float((drawn[0] == drawn[1]).double().mean())
    expected = closed_form(p, q)
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) <= expected + 1e-12
    assert expected <= 1 - distance + 1e-12
    assert abs(matches - expected) <= LIMIT * math.sqrt(expected * (1 - expected) / DRAWS)


def test_independent_noise_does_not(noise: torch.Tensor) -> None:
    p, q = torch.tensor(PAIRS[0][0]), torch.tensor(PAIRS[0][1])
    drawn = (noise[:-1, :3] + p.log()).argmax(1), (noise[1:, :3] + q.log()).argmax(1)
    matches = float((drawn[0] == drawn[1]).double().mean())
    assert matches == pytest.approx(float((p * q).sum()), abs=LIMIT / math.sqrt(DRAWS))
    assert matches < closed_form(p.double().numpy(), q.double().numpy()) - 0.1
