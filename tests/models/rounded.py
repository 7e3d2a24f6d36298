"""int8 products of a weight that is rounded here."""

from collections.abc import Callable

from torch import Tensor

from ssd.models.int8 import int8_matmul, rounded


def rounded_matmul(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return int8_matmul(rounded(weight), bias)


def fine_rounded_matmul(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """With inputs of 16 bits."""
    return int8_matmul(rounded(weight, 16), bias)
