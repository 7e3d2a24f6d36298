"""Noise of whole rows, for tests that name seeds and positions by numbers."""

from collections.abc import Sequence

import torch

from ssd.sampling.noise import noise_of_rows
from ssd.sampling.seeds import seed_tensor


def gumbel_noise(seeds: Sequence[int], positions: Sequence[int], vocab_size: int) -> torch.Tensor:
    """Noise [R, V] in float32 for R (seed, position) rows and the tokens 0..V−1."""
    places = torch.tensor(list(positions), dtype=torch.int64)
    return noise_of_rows(seed_tensor(seeds, "cpu"), places, vocab_size)
