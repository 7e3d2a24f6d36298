"""One matrix multiply with a weight that never changes, as fast as the device allows.

Knows how weights are packed on CPUs. torch's bfloat16 `F.linear` re-packs the weight at
each call; oneDNN's pre-packed form does it once, and then a forward of 16 rows costs
what a forward of one row costs. The packed operators have private names, so they live
here alone, behind a check, with `F.linear` as the fallback.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

MatMul = Callable[[Tensor], Tensor]

PACKED_ROWS_HINT = 16
"""Rows oneDNN lays the weight out for: the widest forward that should stay flat."""


def can_pack() -> bool:
    """Whether this build of torch and this CPU have packed bfloat16 linears."""
    has_operators = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
    return bool(has_operators and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """x → x·weightᵀ + bias, with the weight packed where that is faster."""
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and can_pack():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS_HINT)
        linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: linear_pointwise(x, packed, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)


def apply_tiled(multiply: MatMul, x: Tensor, tiles: Sequence[int]) -> Tensor:
    """Multiplies rows tile by tile, so that a row's bits depend only on its tile's size.

    A single tile is the ordinary case: no splitting, no copy.
    """
    if len(tiles) <= 1:
        return multiply(x)
    return torch.cat([multiply(tile) for tile in torch.split(x, list(tiles))])
