"""The noise in kernels is the noise of `sampling`, to the bit."""

import pytest
import torch
from torch import Tensor

from ssd.kernels.language import jit, tl
from ssd.kernels.noise import murmur_of_tokens, noise_of_run, noise_of_tokens
from ssd.sampling import noise
from ssd.sampling.murmur import murmur_noise


@jit()
def _run(out, seeds, positions, count: tl.constexpr, step: tl.constexpr):
    row, first = tl.program_id(0), tl.program_id(1) * step
    found = noise_of_run(tl.load(seeds + row), tl.load(positions + row), first, step)
    tl.store(out + row * count + first + tl.arange(0, step), found)


@jit()
def _tokens(out, seeds, positions, tokens, count: tl.constexpr):
    row, places = tl.program_id(0), tl.arange(0, count)
    found = noise_of_tokens(tl.load(seeds + row), tl.load(positions + row), tl.load(tokens + places))
    tl.store(out + row * count + places, found)


@jit()
def _murmur(out, seeds, positions, tokens, count: tl.constexpr):
    row, places = tl.program_id(0), tl.arange(0, count)
    found = murmur_of_tokens(tl.load(seeds + row), tl.load(positions + row), tl.load(tokens + places))
    tl.store(out + row * count + places, found)


@pytest.fixture(scope="module")
def rows() -> tuple[Tensor, Tensor]:
    seeds = torch.tensor([0, -1, 2**63 - 1, -(2**63), 1 << 32, 123456789])
    return seeds, torch.tensor([0, 2**32 - 1, 2**31, 7, 1, 4096])


def test_a_run_of_tokens(rows: tuple[Tensor, Tensor]) -> None:
    out = torch.empty(6, 1024)
    _run[(6, 4)](out, *rows, 1024, 256)
    assert torch.equal(out, noise.noise_of_rows(*rows, 1024))


def test_any_tokens(rows: tuple[Tensor, Tensor]) -> None:
    tokens = torch.randperm(200_000, generator=torch.Generator().manual_seed(1))[:128]
    out = torch.empty(6, 128)
    _tokens[(6,)](out, *rows, tokens, 128)
    owners = torch.arange(6).repeat_interleave(128)
    assert torch.equal(out.flatten(), noise.noise_of_tokens(*rows, owners, tokens.repeat(6)))


def test_the_noise_of_vllm(rows: tuple[Tensor, Tensor]) -> None:
    """Its logarithms are those of another library: the last bits may differ."""
    tokens = torch.randperm(200_000, generator=torch.Generator().manual_seed(2))[:128]
    out = torch.empty(6, 128)
    _murmur[(6,)](out, *rows, tokens, 128)
    expected = murmur_noise(rows[0].unsqueeze(1), rows[1].unsqueeze(1), tokens)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
