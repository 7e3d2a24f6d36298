"""Linear layers: matrix multiplies with constant weights.

Knows how weights are packed on CPUs. torch's `F.linear` packs the weight at every call. oneDNN's pre-packed
form packs it once; a forward of several rows then takes about as long as one row: up to 16 rows in bfloat16
with AMX, up to 8 in float32. Rounding weights to int8 halves or quarters the bytes to read. Only this module
uses torch's private packed operators; if they are missing, unrounded linears use `F.linear`. arithmetic.py
detects the CPU's instructions.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.config import Precision
from ssd.models import arithmetic

MatMul = Callable[[Tensor], Tensor]
MakeMatMul = Callable[[Tensor, Tensor | None], MatMul]
"""Makes the multiply of a weight and its bias."""
Weighted = tuple[Tensor, Tensor | None]
"""A weight and its bias."""

PACKED_ROWS_HINT = 16
"""Number of rows that oneDNN optimises the packed layout for."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether packing makes linears of this format faster on this CPU."""
    has = arithmetic.arithmetic()
    return (dtype == torch.bfloat16 and has.bfloat16) or (dtype == torch.float32 and has.packs_float32)


def matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """x → x·weightᵀ + bias, with the weight packed if that is faster."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return packed_matmul(weight, bias)
    return lambda x: F.linear(x, weight, bias)


def packed_matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """Like `matmul`, but always in oneDNN's pre-packed form."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS_HINT)
    linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: linear_pointwise(x, packed, bias, "none", [], "")


def resolve_precision(precision: Precision, device: torch.device, dtype: torch.dtype) -> Precision:
    """Resolves `auto` for this device; ValueError if the device does not support the precision.

    Needs no weights, so it can be called before they are loaded.
    """
    can_round = device.type == "cpu" and arithmetic.arithmetic().int8_steps is not None
    fits = dtype in (torch.bfloat16, torch.float32)
    if precision == "auto":
        return "int8" if can_round and fits else "model"
    if precision == "model":
        return precision
    if precision != "int8":
        raise ValueError(f"precision={precision!r}: use 'auto', 'model' or 'int8'")
    if not can_round:
        raise ValueError(
            f"no int8 linears on this {device.type}: they need a CPU with AVX-512 and torch's oneDNN "
            "operators; use the draft's precision 'auto' or 'model'"
        )
    if not fits:
        raise ValueError(f"int8 weights go with dtype bfloat16 or float32, not {dtype}: use dtype='auto'")
    return precision


def matmul_maker(precision: Precision, device: torch.device, dtype: torch.dtype) -> MakeMatMul:
    """The function that makes multiplies at this precision; ValueError if the device has none."""
    return int8_matmul if resolve_precision(precision, device, dtype) == "int8" else matmul


def int8_matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """Approximates x·weightᵀ + bias with int8 weights, scaled per output, and 8-bit inputs, scaled per row.

    One scale for all rows would be no faster, and one large row would make the others less precise. Inputs
    are unsigned with zero at 128: signed inputs are fast with AMX only and take a thousand times as long on
    other CPUs.
    """
    dtype, (num_outputs, num_inputs) = weight.dtype, weight.shape
    scales = weight.abs().amax(dim=1).float().div_(_int8_steps()).clamp_min_(1e-30)
    # In pieces, because rounding a whole head at once would temporarily need several times its size.
    pieces = zip(torch.split(weight, 4096), torch.split(scales, 4096), strict=True)
    rounded = torch.cat([_rounded(*piece) for piece in pieces])
    packed = torch.ops.onednn.qlinear_prepack(rounded, [PACKED_ROWS_HINT, num_inputs])
    zero_points = torch.zeros(num_outputs, dtype=torch.int32)
    qlinear = torch.ops.onednn.qlinear_pointwise.default

    def multiply(x: Tensor) -> Tensor:
        # 126, not 127: rounding the scale to bfloat16 could push the largest input out of range.
        # A row of zeros becomes 0 / 0; the value does not matter, since its scale of 0 makes it 0 again.
        row_scales = x.abs().amax(dim=1, keepdim=True).mul_(1 / 126)
        inputs = x.div(row_scales).round_().add_(128).to(torch.uint8)
        y: Tensor = qlinear(
            inputs, 1.0, 128, packed, scales, zero_points, None, 1.0, 0, dtype, "none", [], ""
        )
        return y.mul_(row_scales) if bias is None else torch.addcmul(bias, y, row_scales)

    return multiply


def _int8_steps() -> int:
    steps = arithmetic.arithmetic().int8_steps
    assert steps is not None, "int8_matmul was called where resolve_precision refuses int8"
    return steps


def _rounded(weight: Tensor, scales: Tensor) -> Tensor:
    return weight.div(scales.unsqueeze(1)).round_().to(torch.int8)


class Linear:
    """Several projections of one input, computed as one multiply; the outputs are concatenated."""

    def __init__(self, parts: Sequence[Weighted], make: MakeMatMul = matmul) -> None:
        biases = [bias for _, bias in parts if bias is not None]
        if biases and len(biases) != len(parts):
            raise ValueError("merged projections must all have a bias, or none of them")
        weight = _joined([weight for weight, _ in parts])
        self._multiply = make(weight, torch.cat(biases) if biases else None)

    def __call__(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        return apply_tiled(self._multiply, x, tiles)


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """All rows in one tensor. On CPUs numpy allocates it because numpy asks for huge pages: the first access
    to a million small pages takes seconds."""
    first, num_rows = weights[0], sum(len(each) for each in weights)
    if len(weights) == 1:
        return first
    if first.device.type != "cpu":
        return torch.cat(list(weights))
    raw = np.empty(num_rows * first[0].numel() * first.dtype.itemsize, dtype=np.uint8)
    return torch.cat(list(weights), out=torch.from_numpy(raw).view(first.dtype).view(num_rows, -1))


def apply_tiled(multiply: MatMul, x: Tensor, tiles: Sequence[int]) -> Tensor:
    """Multiplies rows tile by tile, so that a row's bits depend only on the size of its tile."""
    if len(tiles) <= 1:
        return multiply(x)
    return torch.cat([multiply(tile) for tile in torch.split(x, list(tiles))])
