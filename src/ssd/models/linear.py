"""One matrix multiply with a weight that never changes, as fast as the device allows.

Knows how weights are packed on CPUs. torch's bfloat16 `F.linear` re-packs the weight at
each call; oneDNN's pre-packed form does it once, and then a forward of 16 rows costs
what a forward of one row costs. Weights rounded to int8 are half as much to read. The
packed operators have private names, so they live here alone, behind checks, with
`F.linear` as the fallback where nothing is rounded.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.config import Precision

MatMul = Callable[[Tensor], Tensor]
MakeMatMul = Callable[[Tensor, Tensor | None], MatMul]
"""From a weight and its bias to their multiply."""

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


def can_quantise() -> bool:
    """Whether this build of torch and this CPU have int8 linears: without VNNI sums could saturate."""
    has_operators = hasattr(torch.ops.onednn, "qlinear_prepack") and hasattr(
        torch.ops.onednn, "qlinear_pointwise"
    )
    return bool(has_operators and torch.cpu._is_vnni_supported())


def matmul_maker(precision: Precision, device: torch.device, dtype: torch.dtype) -> MakeMatMul:
    """How weights become multiplies at this precision; ValueError where they cannot."""
    if precision == "model":
        return matmul
    if precision != "int8":
        raise ValueError(f"precision={precision!r}: use 'model' or 'int8'")
    if device.type != "cpu" or not can_quantise():
        raise ValueError(
            f"no int8 linears on this {device.type}: they need a CPU with VNNI and torch's oneDNN operators; "
            "use precision 'model'"
        )
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"int8 weights go with dtype bfloat16 or float32, not {dtype}: use dtype='auto'")
    return int8_matmul


def int8_matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """About x·weightᵀ + bias: int8 weights with a scale for each output, int8 inputs with one for each row.

    A scale for all rows together would cost as much time, and a single large row would blur the others.
    """
    dtype, (num_outputs, num_inputs) = weight.dtype, weight.shape
    scales = weight.abs().amax(dim=1).float().div_(127).clamp_min_(1e-30)
    # In pieces: a head as a whole would need several times its size for a moment.
    pieces = zip(torch.split(weight, 4096), torch.split(scales, 4096), strict=True)
    rounded = torch.cat([_rounded(*piece) for piece in pieces])
    packed = torch.ops.onednn.qlinear_prepack(rounded, [PACKED_ROWS_HINT, num_inputs])
    zero_points = torch.zeros(num_outputs, dtype=torch.int32)
    qlinear = torch.ops.onednn.qlinear_pointwise.default

    def multiply(x: Tensor) -> Tensor:
        # 126, not 127: rounding of the scale to bfloat16 could carry the largest input to 128, which is -128.
        # A row of zeros becomes 0 / 0, which any int8 may stand for: its scale of 0 makes it 0 again.
        row_scales = x.abs().amax(dim=1, keepdim=True).mul_(1 / 126)
        inputs = x.div(row_scales).round_().to(torch.int8)
        y: Tensor = qlinear(inputs, 1.0, 0, packed, scales, zero_points, None, 1.0, 0, dtype, "none", [], "")
        return y.mul_(row_scales) if bias is None else torch.addcmul(bias, y, row_scales)

    return multiply


def _rounded(weight: Tensor, scales: Tensor) -> Tensor:
    return weight.div(scales.unsqueeze(1)).round_().to(torch.int8)


def apply_tiled(multiply: MatMul, x: Tensor, tiles: Sequence[int]) -> Tensor:
    """Multiplies rows tile by tile, so that a row's bits depend only on its tile's size.

    A single tile is the ordinary case: no splitting, no copy.
    """
    if len(tiles) <= 1:
        return multiply(x)
    return torch.cat([multiply(tile) for tile in torch.split(x, list(tiles))])
