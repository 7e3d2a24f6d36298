"""The inputs of the coupled decision beside the logits, as tensors with one entry for each row. Data only.

y = argmax(z/T + g(seed, position, ·)) over the tokens that truncation keeps;   T = 0: argmax(z)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Truncation:
    """min_p, then top_k, then top_p, of rows that are not truncated yet."""

    log_min_p: Tensor  # [R] float64; −inf: off
    top_k: Tensor  # [R] int64; 0: off
    top_p: Tensor  # [R] float64; 1: off

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> Truncation | None:
        """None if no row is truncated."""
        if not any(each.truncated for each in params):
            return None
        least = [math.log(each.min_p) if each.min_p > 0.0 else -math.inf for each in params]
        return cls(
            torch.tensor(least, dtype=torch.float64).to(device),
            torch.tensor([each.top_k for each in params]).to(device),
            torch.tensor([each.top_p for each in params], dtype=torch.float64).to(device),
        )

    def to(self, device: torch.device) -> Truncation:
        return Truncation(self.log_min_p.to(device), self.top_k.to(device), self.top_p.to(device))

    def at(self, rows: Tensor | slice) -> Truncation:
        return Truncation(self.log_min_p[rows], self.top_k[rows], self.top_p[rows])


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row is decided. A position is the absolute one of the token being decided."""

    seeds: Tensor  # [R] int64: the 64 bits of each seed
    positions: Tensor  # [R] int64, from 0 to 2**32 − 1
    temperatures: Tensor  # [R] float32; 0: greedy
    truncation: Truncation | None = None
    is_murmur: Tensor | None = None  # [R] bool: the noise of vLLM's V2 runner (`murmur.py`), for drafts

    def __len__(self) -> int:
        return len(self.positions)

    def to(self, device: torch.device) -> Draws:
        truncation = None if self.truncation is None else self.truncation.to(device)
        is_murmur = None if self.is_murmur is None else self.is_murmur.to(device)
        seeds, positions = self.seeds.to(device), self.positions.to(device)
        return Draws(seeds, positions, self.temperatures.to(device), truncation, is_murmur)

    def at(self, rows: Tensor | slice) -> Draws:
        truncation = None if self.truncation is None else self.truncation.at(rows)
        is_murmur = None if self.is_murmur is None else self.is_murmur[rows]
        seeds, positions = self.seeds[rows], self.positions[rows]
        return Draws(seeds, positions, self.temperatures[rows], truncation, is_murmur)
