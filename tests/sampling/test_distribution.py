"""Parameters draw from the distribution that the float64 reference gives them, closely enough to see 1 %.

Other parameters change scores as the reference does (test_processors.py), and the draw is the same.

A token of probability p, drawn N times, is counted with standard deviation √(Np(1−p)). The tests allow LIMIT
deviations. A bias that moves p to (1+b)p shifts the count by bNp, and is certain to be seen (all but 1 in
10⁶ times, 4.9 deviations) if bNp ≥ (LIMIT + 4.9)·√(Np(1−p)). That b is computed and must be under 1 %; a bias
of 1 % is then put in, and must fail.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ssd.sampling import SamplingParams, SamplingRow, process_logits, sample
from tests.sampling.noise import gumbel_noise
from tests.sampling.reference import reference_process, sampling_row, softmax

DRAWS = 4_000_000
STEP = 250_000
VOCAB = 7
LIMIT = 4.9  # two-sided p = 1e-6
BIAS = 0.01

LOGITS = [1.9, -0.3, 1.1, 0.2, -1.0, 1.4, 0.7]
PROMPT, OUTPUT = (3, 5), (0, 2, 2, 6)

CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.7},
    {"top_p": 0.7},
    {"frequency_penalty": 0.3},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
]


@pytest.fixture(scope="module")
def noise() -> list[torch.Tensor]:
    """Noise of many positions, shared by all cases: what the distribution is over."""
    return [gumbel_noise([77] * STEP, range(i, i + STEP), VOCAB) for i in range(0, DRAWS, STEP)]


def case_row(changes: dict[str, Any]) -> SamplingRow:
    return sampling_row(SamplingParams(**changes), prompt=PROMPT, output=OUTPUT, end_ids=(5,))


def draw_counts(scores: torch.Tensor, noise: list[torch.Tensor]) -> NDArray[np.int64]:
    tokens = [(part + scores).numpy().argmax(1) for part in noise]
    return np.bincount(np.concatenate(tokens), minlength=VOCAB)


def deviations(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each count is from its expectation; a count where none may be is infinitely far."""
    spread = np.sqrt(DRAWS * expected * (1 - expected))
    off = np.abs(counts - DRAWS * expected)
    return np.where(spread > 0, off / np.where(spread > 0, spread, 1), np.where(off > 0, np.inf, 0))


def smallest_visible_bias(p: float) -> float:
    return (LIMIT + 4.9) * math.sqrt((1 - p) / (p * DRAWS))


def with_bias(scores: torch.Tensor, token: int, p: float) -> torch.Tensor:
    """Scores under which the token's probability is (1 + BIAS) times what it was."""
    biased = scores.clone()
    biased[token] += math.log((1 + BIAS) * (1 - p) / (1 - (1 + BIAS) * p))
    return biased


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_distribution(changes: dict[str, Any], noise: list[torch.Tensor]) -> None:
    row = case_row(changes)
    scores = process_logits(torch.tensor(LOGITS), row)
    expected = softmax(reference_process(np.array(LOGITS), row)[0])
    assert deviations(draw_counts(scores, noise), expected).max() < LIMIT

    likeliest = int(expected.argmax())
    p = float(expected[likeliest])
    assert smallest_visible_bias(p) < BIAS
    injected = draw_counts(with_bias(scores, likeliest, p), noise)
    assert deviations(injected, expected).max() > LIMIT

    # The counts above are of argmax(scores + noise): `sample` gives exactly that, position by position.
    rows = [
        SamplingRow(row.params, 77, position, row.prompt, row.output, row.end_ids) for position in range(200)
    ]
    tokens = [result.token for result in sample(torch.tensor([LOGITS] * 200), rows)]
    assert tokens == (noise[0][:200] + scores).argmax(1).tolist()
