"""What a decoder computes for each row between its linears: a residual's norm, and the MLP's product.

Chooses our kernels on a GPU, torch elsewhere. Knows rows. Does not know layers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowMath:
    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    """hidden + delta, and its RMSNorm with a weight and an epsilon."""
    silu_mul: Callable[[Tensor], Tensor]
    """silu(gate) · up of rows [gate | up]."""


def add_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    hidden = hidden + delta
    return hidden, F.rms_norm(hidden, weight.shape, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def row_math_on(device: torch.device) -> RowMath:
    """Our kernels where they can be launched."""
    if device.type == "cpu":
        return RowMath(add_norm, silu_mul)
    # Imported here because Triton takes long to import and is used on GPUs only.
    from ssd.kernels import rows
    from ssd.kernels.language import can_launch

    return RowMath(rows.add_norm, rows.silu_mul) if can_launch(device) else RowMath(add_norm, silu_mul)
