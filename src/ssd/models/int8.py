"""Matrices in int8: 8-bit weights with a scale for each row, and their multiplies on CPUs.

Knows rounding and oneDNN's packed int8 operator, which is private to torch. Integers are added exactly, and
inputs are scaled row by row: a row's products do not depend on the rows beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ssd.models import arithmetic

PACKED_ROWS_HINT = 16
"""Number of rows that oneDNN optimises the packed layout for."""
_ROWS_AT_ONCE = 1024
"""Rounding a whole head at once would temporarily need several times its size."""
_LARGEST, _ZERO = 126, 128
"""Inputs are unsigned: signed ones are fast with AMX only and take a thousand times as long on other CPUs.
126, not 127: rounding the scale to bfloat16 could push the largest input out of range."""
_SECOND_DIGIT = 254

InputBits = Literal[8, 16]
"""8 is faster. 16 adds a second digit of 8 bits: as many rows again, and nearly no error of the inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Int8Matrix:
    values: Tensor
    """int8 [rows, columns]."""
    scales: Tensor
    """float32 [rows]; the weights are values · scales."""
    input_bits: InputBits = 8
    """How its inputs are rounded."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Tensor) -> "Int8Matrix":
        return replace(self, values=self.values[rows], scales=self.scales[rows])

    def numel(self) -> int:
        return self.values.numel()

    def tensor_split(self, count: int) -> list["Int8Matrix"]:
        pieces = zip(self.values.tensor_split(count), self.scales.tensor_split(count), strict=True)
        return [replace(self, values=values, scales=scales) for values, scales in pieces]

    def to_dtype(self, dtype: torch.dtype) -> Tensor:
        """The weights themselves."""
        return (self.values.float() * self.scales[:, None]).to(dtype)


def rounded(weight: Tensor, input_bits: InputBits = 8) -> Int8Matrix:
    """The matrix in int8. The largest weight of each row becomes the largest integer."""
    scales = torch.empty(len(weight))
    values = torch.empty(weight.shape, dtype=torch.int8)
    steps = _int8_steps()
    pieces = (torch.split(each, _ROWS_AT_ONCE) for each in (weight, scales, values))
    for piece, piece_scales, piece_values in zip(*pieces, strict=True):
        floats = piece.float()
        low, high = floats.aminmax(dim=1)
        torch.maximum(high, -low, out=piece_scales)
        piece_scales.div_(steps).clamp_min_(1e-30)
        piece_values.copy_(floats.div(piece_scales[:, None]).round_())
    return Int8Matrix(values, scales, input_bits)


def int8_matmul(matrix: Int8Matrix, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Approximates x·weightᵀ + bias: inputs are rounded, with a scale for each row.

    One scale for all rows would be no faster, and one large row would make the others less precise.
    """
    multiply = _integer_matmul(matrix)

    def with_8_bits(x: Tensor) -> Tensor:
        # A row of zeros becomes 0 / 0; the value does not matter, since its scale of 0 makes it 0 again.
        row_scales = x.abs().amax(dim=1, keepdim=True).mul_(1 / _LARGEST)
        y = multiply(x.div(row_scales).round_(), x.dtype)
        return y.mul_(row_scales) if bias is None else torch.addcmul(bias, y, row_scales)

    def with_16_bits(x: Tensor) -> Tensor:
        row_scales = x.abs().amax(dim=1, keepdim=True).float().mul_(1 / _LARGEST)
        digits = x.new_empty(2, *x.shape, dtype=torch.float32)
        first, second = digits
        torch.div(x, row_scales, out=second)
        torch.round(second, out=first)
        second.sub_(first).mul_(_SECOND_DIGIT).round_()
        # The weights are read once for both digits.
        high, low = multiply(digits.flatten(0, 1), torch.float32).tensor_split(2)
        y = high.add_(low, alpha=1 / _SECOND_DIGIT).mul_(row_scales)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    return with_8_bits if matrix.input_bits == 8 else with_16_bits


def _integer_matmul(matrix: Int8Matrix) -> Callable[[Tensor, torch.dtype], Tensor]:
    """Multiplies whole numbers from −127 to 127; the products are in a number format of choice."""
    num_outputs, num_inputs = matrix.values.shape
    scales = matrix.scales
    packed = torch.ops.onednn.qlinear_prepack(matrix.values, [PACKED_ROWS_HINT, num_inputs])
    zero_points = torch.zeros(num_outputs, dtype=torch.int32)
    qlinear = torch.ops.onednn.qlinear_pointwise.default

    def multiply(numbers: Tensor, dtype: torch.dtype) -> Tensor:
        inputs = numbers.add_(_ZERO).to(torch.uint8)
        y: Tensor = qlinear(
            inputs, 1.0, _ZERO, packed, scales, zero_points, None, 1.0, 0, dtype, "none", [], ""
        )
        return y

    return multiply


def _int8_steps() -> int:
    steps = arithmetic.arithmetic().int8_steps
    assert steps is not None, "a matrix is rounded where resolve_precision refuses int8"
    return steps
