"""The rotary position embedding of a forward's rows, as attention backends apply it.

Knows the angles of rows. Does not know positions or how frequencies are scaled (`models/rope.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of each row's position, float32, [rows, 1, head_dim / 2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def none(cls, num_rows: int, head_dim: int, device: torch.device) -> "Rotation":
        """Leaves heads as they are."""
        size = (num_rows, 1, head_dim // 2)
        return cls(torch.ones(size, device=device), torch.zeros(size, device=device))

    def apply(self, heads: Tensor) -> Tensor:
        """Rotates [rows, heads, head_dim] in float32; returns the dtype of `heads`."""
        first, second = heads.float().chunk(2, dim=-1)
        rotated = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(rotated, dim=-1).to(heads.dtype)
