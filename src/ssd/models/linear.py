"""Linear layers: matrix multiplies with constant weights.

Knows how weights are packed on CPUs. torch's `F.linear` packs the weight at every call. oneDNN's pre-packed
form packs it once; a forward of several rows then takes about as long as one row: up to 16 rows in bfloat16
with AMX, up to 8 in float32. Rounding weights to int8 halves or quarters the bytes to read (int8.py). Only
these two modules use torch's private packed operators; if they are missing, unrounded linears use `F.linear`.
arithmetic.py detects the CPU's instructions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.config import Precision
from ssd.models import arithmetic
from ssd.models.int8 import PACKED_ROWS_HINT, Int8Matrix, int8_matmul

Matrix = Tensor | Int8Matrix
MatMul = Callable[[Tensor], Tensor]
MakeMatMul = Callable[[Any, Tensor | None], MatMul]
"""Makes the multiply of a matrix, of a form that it knows, and its bias."""
Weighted = tuple[Matrix, Tensor | None]
"""A weight and its bias."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether packing makes linears of this format faster on this CPU."""
    has = arithmetic.arithmetic()
    return (dtype == torch.bfloat16 and has.bfloat16) or (dtype == torch.float32 and has.packs_float32)


def matmul(weight: Matrix, bias: Tensor | None) -> MatMul:
    """x → x·weightᵀ + bias, with the weight packed if that is faster."""
    if isinstance(weight, Int8Matrix):
        return int8_matmul(weight, bias)
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return packed_matmul(weight, bias)
    return lambda x: F.linear(x, weight, bias)


def packed_matmul(weight: Tensor, bias: Tensor | None) -> MatMul:
    """Like `matmul`, but always in oneDNN's pre-packed form."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS_HINT)
    linear_pointwise = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: linear_pointwise(x, packed, bias, "none", [], "")


def resolve_precision(precision: Precision, device: torch.device, dtype: torch.dtype) -> Precision:
    """Resolves a draft's `auto` for this device; ValueError if the device does not support the precision.

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
            "operators; use precision 'auto' or 'model'"
        )
    if not fits:
        raise ValueError(f"int8 weights go with dtype bfloat16 or float32, not {dtype}: use dtype='auto'")
    return precision


def resolve_target_precision(precision: Precision, device: torch.device, dtype: torch.dtype) -> Precision:
    """Like `resolve_precision` for a target, whose weights decide its tokens: `auto` does not round them."""
    return resolve_precision("model" if precision == "auto" else precision, device, dtype)


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


def _joined(weights: Sequence[Matrix]) -> Matrix:
    """All rows in one matrix."""
    if len(weights) == 1:
        return weights[0]
    rounded = [each for each in weights if isinstance(each, Int8Matrix)]
    if rounded:
        values = _stacked([each.values for each in rounded])
        return replace(rounded[0], values=values, scales=torch.cat([each.scales for each in rounded]))
    return _stacked([each for each in weights if isinstance(each, Tensor)])


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    """All rows in one tensor. On CPUs numpy allocates it because numpy asks for huge pages: the first access
    to a million small pages takes seconds."""
    first, num_rows = weights[0], sum(len(each) for each in weights)
    if first.device.type != "cpu":
        return torch.cat(list(weights))
    raw = np.empty(num_rows * first[0].numel() * first.dtype.itemsize, dtype=np.uint8)
    return torch.cat(list(weights), out=torch.from_numpy(raw).view(first.dtype).view(num_rows, -1))


def apply_tiled(multiply: MatMul, x: Tensor, tiles: Sequence[int]) -> Tensor:
    """Multiplies rows tile by tile, so that a row's bits depend only on the size of its tile."""
    if len(tiles) <= 1:
        return multiply(x)
    return torch.cat([multiply(tile) for tile in torch.split(x, list(tiles))])
