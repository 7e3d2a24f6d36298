"""Linear layers: matrix multiplies with weights that never change, as fast as the device allows.

Knows how weights are packed on CPUs. torch's `F.linear` lays the weight out anew at each call;
oneDNN's pre-packed form does it once, and then a forward of several rows costs about what one of
one row costs: up to 16 rows in bfloat16 with AMX, up to 8 in float32. Weights rounded to int8 are
less to read. The packed operators have private names, so they live here alone, behind checks, with
`F.linear` as the fallback where nothing is rounded. What the CPU has is asked in arithmetic.py.
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
"""From a weight and its bias to their multiply."""
Weighted = tuple[Tensor, Tensor | None]
"""A weight and its bias."""

PACKED_ROWS_HINT = 16
"""Rows oneDNN lays the weight out for: the widest forward that should stay flat."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether packing makes linears of this format faster on this CPU."""
    has = arithmetic.arithmetic()
    return (dtype == torch.bfloat16 and has.bfloat16) or (dtype == torch.float32 and has.packs_float32)


def matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """x → x·weightᵀ + bias, with the weight packed where that is faster."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return packed_matmul(weight, bias)
    return lambda x: F.linear(x, weight, bias)


def packed_matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """As `matmul`, by oneDNN's pre-packed form, whether that is faster or not."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS_HINT)
    linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: linear_pointwise(x, packed, bias, "none", [], "")


def resolve_precision(precision: Precision, device: torch.device, dtype: torch.dtype) -> Precision:
    """What `auto` means on this device; ValueError where what is asked for cannot be had there.

    Nothing is loaded for it: it can be asked before anything is.
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
    """How weights become multiplies at this precision; ValueError where they cannot."""
    return int8_matmul if resolve_precision(precision, device, dtype) == "int8" else matmul


def int8_matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """About x·weightᵀ + bias: int8 weights with a scale for each output, 8-bit inputs with one for each row.

    A scale for all rows together would cost as much time, and a single large row would blur the others.
    Inputs are unsigned, around 128: signed ones have a fast form with AMX only, and elsewhere take a
    thousand times as long.
    """
    dtype, (num_outputs, num_inputs) = weight.dtype, weight.shape
    scales = weight.abs().amax(dim=1).float().div_(_int8_steps()).clamp_min_(1e-30)
    # In pieces: a head as a whole would need several times its size for a moment.
    pieces = zip(torch.split(weight, 4096), torch.split(scales, 4096), strict=True)
    rounded = torch.cat([_rounded(*piece) for piece in pieces])
    packed = torch.ops.onednn.qlinear_prepack(rounded, [PACKED_ROWS_HINT, num_inputs])
    zero_points = torch.zeros(num_outputs, dtype=torch.int32)
    qlinear = torch.ops.onednn.qlinear_pointwise.default

    def multiply(x: Tensor) -> Tensor:
        # 126, not 127: rounding of the scale to bfloat16 could carry the largest input beyond the edge.
        # A row of zeros becomes 0 / 0, which any number may stand for: its scale of 0 makes it 0 again.
        row_scales = x.abs().amax(dim=1, keepdim=True).mul_(1 / 126)
        inputs = x.div(row_scales).round_().add_(128).to(torch.uint8)
        y: Tensor = qlinear(
            inputs, 1.0, 128, packed, scales, zero_points, None, 1.0, 0, dtype, "none", [], ""
        )
        return y.mul_(row_scales) if bias is None else torch.addcmul(bias, y, row_scales)

    return multiply


def _int8_steps() -> int:
    steps = arithmetic.arithmetic().int8_steps
    assert steps is not None, "int8_matmul where resolve_precision refuses int8"
    return steps


def _rounded(weight: Tensor, scales: Tensor) -> Tensor:
    return weight.div(scales.unsqueeze(1)).round_().to(torch.int8)


class Linear:
    """Several projections of one input, computed as one multiply; their outputs lie side by side."""

    def __init__(self, parts: Sequence[Weighted], make: MakeMatMul = matmul) -> None:
        biases = [bias for _, bias in parts if bias is not None]
        if biases and len(biases) != len(parts):
            raise ValueError("of merged projections either all have a bias or none has")
        weight = _joined([weight for weight, _ in parts])
        self._multiply = make(weight, torch.cat(biases) if biases else None)

    def __call__(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        return apply_tiled(self._multiply, x, tiles)


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """All rows in one tensor. On CPUs numpy allocates it, since it asks for large pages: touching a million
    small pages for the first time takes seconds."""
    first, num_rows = weights[0], sum(len(each) for each in weights)
    if len(weights) == 1:
        return first
    if first.device.type != "cpu":
        return torch.cat(list(weights))
    raw = np.empty(num_rows * first[0].numel() * first.dtype.itemsize, dtype=np.uint8)
    return torch.cat(list(weights), out=torch.from_numpy(raw).view(first.dtype).view(num_rows, -1))


def apply_tiled(multiply: MatMul, x: Tensor, tiles: Sequence[int]) -> Tensor:
    """Multiplies rows tile by tile, so that a row's bits depend only on its tile's size.

    A single tile is the ordinary case: no splitting, no copy.
    """
    if len(tiles) <= 1:
        return multiply(x)
    return torch.cat([multiply(tile) for tile in torch.split(x, list(tiles))])
