"""The noise: its definition, its independence of shape, and its statistics over 4 million draws.

All seeds are fixed, so a statistical test either always passes or always fails; its threshold (p = 1e-6) says
how surprising the fixed draw would have to be for an ideal generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from ssd.sampling import gumbel_noise_at, gumbel_noise_ragged, mix_seed
from ssd.sampling.noise import NOISE_BOTTOM, NOISE_CEILING, gumbel_from_bits
from tests.sampling.noise import gumbel_noise
from tests.sampling.test_philox import plain_philox

P_VALUE = 1e-6
DRAWS = 4_000_000


def plain_noise(seed: int, position: int, token: int) -> float:
    words = plain_philox([token // 4, position, 0, 0], [seed % 2**32, seed // 2**32])
    u = (words[token % 4] + 0.5) / 2**32
    return -math.log(-math.log1p(-u))


def test_the_definition() -> None:
    seeds = [0, 1, 2**32 + 7, 2**64 - 1, 123456789012345]
    positions = [0, 5, 4096, 2**32 - 1, 31]
    noise = gumbel_noise(seeds, positions, 31)
    assert noise.dtype == torch.float32
    expected = [[plain_noise(s, p, v) for v in range(31)] for s, p in zip(seeds, positions, strict=True)]
    assert noise.tolist() == [[float(np.float32(g)) for g in row] for row in expected]


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 4, 5, 63, 1000, 52_001])
def test_the_vocabulary_size_changes_nothing(vocab_size: int) -> None:
    wide = gumbel_noise([9], [77], 151_936)
    assert torch.equal(gumbel_noise([9], [77], vocab_size), wide[:, :vocab_size])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    seeds, positions = [mix_seed(3, i) for i in range(16)], list(range(100, 116))
    together = gumbel_noise(seeds, positions, 30_001)
    for i in range(16):
        assert torch.equal(together[i : i + 1], gumbel_noise(seeds[i : i + 1], positions[i : i + 1], 30_001))


def test_a_subset_has_the_bits_of_the_whole() -> None:
    whole = gumbel_noise([5, 6], [70, 80], 151_936)
    shuffled = torch.randperm(151_936, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gumbel_noise_at(5, 70, shuffled), whole[0, shuffled])
    square = shuffled[:12].view(3, 4)
    assert torch.equal(gumbel_noise_at(5, 70, square), whole[0, square])
    few = shuffled[:5]
    assert torch.equal(gumbel_noise_at(5, 70, few), whole[0, few])
    sizes = [0, 1, 7, 40_000]
    choices = list(torch.split(shuffled[: sum(sizes)], sizes))
    parts = gumbel_noise_ragged([5, 6, 5, 6], [70, 80, 70, 80], choices)
    for i, (part, ids) in enumerate(zip(parts, choices, strict=True)):
        assert torch.equal(part, whole[i % 2, ids])
    assert gumbel_noise_ragged([], [], []) == []


def test_never_infinite_and_within_its_bounds() -> None:
    extremes = torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1])
    noise = gumbel_from_bits(extremes).float()
    assert torch.isfinite(noise).all()
    assert noise[0] == pytest.approx(33 * math.log(2), abs=1e-5)
    assert noise[-1] == pytest.approx(-math.log(33 * math.log(2)), abs=1e-6)
    assert float(noise.max()) < NOISE_CEILING
    assert float(noise.min()) > NOISE_BOTTOM
    assert (noise[:-1] > noise[1:]).logical_or(extremes[1:] - extremes[:-1] == 1).all()


def test_integers_reach_both_ends_of_float32_without_ties_at_the_winning_end() -> None:
    # Where draws are won neighbours must stay apart: the 64 smallest integers give 64 different values.
    assert len(set(gumbel_from_bits(torch.arange(64)).float().tolist())) == 64


def test_positions_out_of_range_are_refused() -> None:
    for position in (-1, 2**32):
        with pytest.raises(ValueError, match=f"position={position}"):
            gumbel_noise_ragged([0], [position], [torch.tensor([3])])


def test_mixed_seeds_keep_index_zero_and_do_not_collide() -> None:
    seeds = [*range(1500), *(2**64 - 1 - i for i in range(500)), *(i << 32 for i in range(1, 500))]
    assert all(mix_seed(seed, 0) == seed for seed in seeds)
    mixed = {mix_seed(seed, index) for seed in seeds for index in range(128)}
    assert len(mixed) == len(seeds) * 128
    # A step by splitmix64's constant must not turn one request's index into another's.
    assert mix_seed(5 + 0x9E3779B97F4A7C15, 1) != mix_seed(5, 2)
    with pytest.raises(ValueError, match="index=-1"):
        mix_seed(5, -1)


def along_tokens() -> torch.Tensor:
    return gumbel_noise([11] * 100, list(range(100)), DRAWS // 100)


def along_positions() -> torch.Tensor:
    return in_pieces(lambda places: gumbel_noise([12] * len(places), places, 4))


def along_seeds() -> torch.Tensor:
    return in_pieces(lambda seeds: gumbel_noise(seeds, [3] * len(seeds), 4))


def in_pieces(noise: Callable[[range], torch.Tensor]) -> torch.Tensor:
    """Four tokens along a quarter of the draws, some memory at a time."""
    step = DRAWS // 40
    return torch.cat([noise(range(i, i + step)) for i in range(0, DRAWS // 4, step)]).T.contiguous()


def uniforms(noise: torch.Tensor) -> NDArray[np.float64]:
    """The u behind each g, up to float32's rounding of g."""
    return -np.expm1(-np.exp(-noise.numpy().astype(np.float64)))


def serial_z(u: NDArray[np.float64]) -> float:
    """Correlation of neighbours along the last axis, in standard deviations."""
    left, right = u[:, :-1].ravel() - 0.5, u[:, 1:].ravel() - 0.5
    return float(12 * np.mean(left * right) * math.sqrt(left.size))


@pytest.mark.parametrize("direction", [along_tokens, along_positions, along_seeds])
def test_uniform_and_independent(direction: Callable[[], torch.Tensor]) -> None:
    u = uniforms(direction())
    assert u.size == DRAWS
    counts = np.bincount((u.ravel() * 1024).astype(np.int64), minlength=1024)
    assert len(counts) == 1024
    assert stats.chisquare(counts).pvalue > P_VALUE
    assert stats.kstest(u.ravel()[: DRAWS // 4], "uniform").pvalue > P_VALUE
    assert abs(serial_z(u)) < stats.norm.isf(P_VALUE / 2)
    # Neighbours two by two, in 32 × 32 cells: dependence that a correlation does not see.
    cells = (u * 32).astype(np.int64)
    pairs = np.bincount((cells[:, 0:-1:2] * 32 + cells[:, 1::2]).ravel(), minlength=1024)
    assert stats.chisquare(pairs).pvalue > P_VALUE


def test_the_statistics_can_fail() -> None:
    rng = np.random.default_rng(0)
    u = rng.random((4, 500_000))
    smoothed = (u[:, 1:] + 0.02 * u[:, :-1]) / 1.02
    assert abs(serial_z(u)) < 4.9 < abs(serial_z(smoothed))
