"""Rotary position embedding: tables of cosines and sines.

Knows frequencies and their scaling. Does not know sequences: each row has its own position, so nodes of a
tree can have positions that differ from their slots. `attention/rotation.py` applies them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.attention.rotation import Rotation
from ssd.models.config import RopeConfig


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of every position, float32, [positions, head_dim / 2]."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor) -> Rotation:
        return Rotation(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))


def rope_table(
    config: RopeConfig,
    head_dim: int,
    num_positions: int,
    *,
    device: torch.device,
    factors: Tensor | None = None,
) -> RopeTable:
    """`factors` divide the plain frequencies: the form in which GGUF files carry llama3 scaling."""
    if factors is None:
        frequencies = inverse_frequencies(config, head_dim)
    else:
        frequencies = inverse_frequencies(RopeConfig(config.theta), head_dim) / factors.float().cpu()
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return RopeTable(cos=angles.cos().to(device), sin=angles.sin().to(device))


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        return _llama3_scaled(frequencies, config)
    return frequencies


def _llama3_scaled(frequencies: Tensor, config: RopeConfig) -> Tensor:
    """Stretches long wavelengths by the factor, keeps short ones, and blends those between."""
    wavelengths = 2 * math.pi / frequencies
    low, high = config.low_freq_factor, config.high_freq_factor
    blend = (config.original_max_position / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / config.factor + blend * frequencies
    scaled = torch.where(
        wavelengths > config.original_max_position / low, frequencies / config.factor, blended
    )
    return torch.where(wavelengths < config.original_max_position / high, frequencies, scaled)
