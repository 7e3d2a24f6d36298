"""Rotary embedding: scaling in both spellings, and rotation at positions unlike the row order."""

import math

import torch

from ssd.models.config import RopeConfig
from ssd.models.rope import inverse_frequencies, rope_table

CPU = torch.device("cpu")
LLAMA3 = RopeConfig(500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)
PLAIN = RopeConfig(500_000.0)


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    plain, scaled = inverse_frequencies(PLAIN, 128), inverse_frequencies(LLAMA3, 128)
    wavelengths = 2 * math.pi / plain
    assert torch.equal(scaled[wavelengths < 8192 / 4], plain[wavelengths < 8192 / 4])
    assert torch.equal(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
    between = (wavelengths >= 8192 / 4) & (wavelengths <= 8192)
    assert bool(between.any())
    assert bool((scaled[between] < plain[between]).all())
    assert bool((scaled[between] > plain[between] / 8).all())


def test_factors_of_a_gguf_file_are_the_same_scaling() -> None:
    factors = inverse_frequencies(PLAIN, 128) / inverse_frequencies(LLAMA3, 128)
    by_factors = rope_table(PLAIN, 128, 600, device=CPU, factors=factors)
    torch.testing.assert_close(by_factors.cos, rope_table(LLAMA3, 128, 600, device=CPU).cos)


def test_linear_scaling_divides_positions() -> None:
    linear = rope_table(RopeConfig(1e4, "linear", factor=4.0), 64, 401, device=CPU)
    plain = rope_table(RopeConfig(1e4), 64, 101, device=CPU)
    torch.testing.assert_close(linear.cos[::4], plain.cos, rtol=1e-5, atol=1e-5)


def test_scores_depend_on_distance_alone() -> None:
    table = rope_table(PLAIN, 64, 300, device=CPU)
    query, key = torch.randn(1, 1, 64), torch.randn(1, 1, 64)

    def score(query_at: int, key_at: int) -> float:
        rotated = [table.at(torch.tensor([at])).apply(x) for x, at in ((query, query_at), (key, key_at))]
        return float((rotated[0] * rotated[1]).sum())

    assert math.isclose(score(7, 3), score(207, 203), abs_tol=1e-3)
    assert not math.isclose(score(7, 3), score(8, 3), abs_tol=1e-3)
