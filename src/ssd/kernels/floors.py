"""Finds the floor of min_p, top_k and top_p for each row, given its largest logits.

`candidate_floors` of `sampling/truncation.py` is the reference, and says what a floor is. The first launch
sums the weights of each block of columns, the second finds the floor. Sums of weights are exact, so the order
of summation does not matter. Greedy rows, whose temperature is 0, have no floor. Knows logits. Does not know
noise.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.trees import up_to_power
from ssd.sampling.draws import Truncation

BLOCK = 1024


class TruncationColumns(NamedTuple):
    """The columns of `Truncation`."""

    log_min_p: Tensor
    top_k: Tensor
    top_p: Tensor


@jit()
def weights_of(scores, peak):
    """exp(z − peak) as multiples of 2⁻³⁴, rounded half to even."""
    weights = tl.exp(scores.to(tl.float64) - peak) * 17179869184.0
    # Below 2⁵² the sum has no bits after the point.
    return (weights + 4503599627370496.0) - 4503599627370496.0


@jit()
def cut_of(largest, temperature, truncation, row, width):
    """The largest score of a row in float64, and the floor of min_p and top_k."""
    peak = tl.div_rn(tl.load(largest + row * width), temperature).to(tl.float64)
    floor = (peak + tl.load(truncation.log_min_p + row)).to(tl.float32)
    top_k = tl.load(truncation.top_k + row)
    has_kth = (top_k > 0) & (top_k <= width)
    kth = tl.load(largest + row * width + top_k - 1, mask=has_kth, other=float("-inf"))
    return peak, tl.maximum(floor, tl.div_rn(kth, temperature))


@jit()
def weigh_block(
    logits,
    largest,
    temperatures,
    truncation,
    masses,
    row_stride,
    num_columns,
    width,
    block: tl.constexpr,
):
    """One program per row and block. Rows without top_p need no masses."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    if (temperature != 0.0) & (tl.load(truncation.top_p + row) < 1.0):
        peak, floor = cut_of(largest, temperature, truncation, row, width)
        columns = tl.program_id(1) * block + tl.arange(0, block)
        scores = tl.load(
            logits + row * row_stride + columns, mask=columns < num_columns, other=float("-inf")
        ).to(tl.float32)
        scores = tl.div_rn(scores, tl.zeros_like(scores) + temperature)
        weights = tl.where(scores >= floor, weights_of(scores, peak), 0.0)
        tl.store(masses + row * tl.num_programs(1) + tl.program_id(1), tl.sum(weights, 0))


@jit()
def find_floor(
    largest,
    temperatures,
    truncation,
    masses,
    floors,
    width,
    num_blocks,
    wide: tl.constexpr,
    blocks: tl.constexpr,
):
    """One program per row. `wide` and `blocks` are powers of two, at least the actual sizes."""
    row = tl.program_id(0).to(tl.int64)
    temperature, floor = tl.load(temperatures + row), tl.full([], float("-inf"), tl.float32)
    if temperature != 0.0:
        peak, floor = cut_of(largest, temperature, truncation, row, width)
        top_p = tl.load(truncation.top_p + row)
        if top_p < 1.0:
            place, number = tl.arange(0, wide), tl.arange(0, blocks)
            scores = tl.load(largest + row * width + place, mask=place < width, other=float("-inf"))
            scores = tl.div_rn(scores, tl.zeros_like(scores) + temperature)
            weights = tl.where(scores >= floor, weights_of(scores, peak), 0.0)
            mass = tl.load(masses + row * num_blocks + number, mask=number < num_blocks, other=0.0)
            needed = tl.maximum(top_p * tl.sum(mass, 0), 1.0)
            is_before = (tl.cumsum(weights, 0) < needed) & (place < width)
            index = tl.sum(is_before.to(tl.int32), 0)
            border = tl.max(tl.where(place == index, scores, float("-inf")), 0)
            floor = tl.maximum(floor, border)
        # Not for rows with NaN or ∞, or without allowed tokens.
        floor = tl.where(peak - peak == 0.0, floor, float("-inf"))
    tl.store(floors + row, floor)


def floors_of(logits: Tensor, largest: Tensor, temperatures: Tensor, truncation: Truncation) -> Tensor:
    """Floors of z/T [R]. `largest`: the N largest logits of each row [R, N], descending. Two launches."""
    (num_rows, num_columns), width = logits.shape, largest.shape[1]
    num_blocks, device = -(-num_columns // BLOCK), logits.device
    masses = torch.empty(num_rows, num_blocks, dtype=torch.float64, device=device)
    floors = torch.empty(num_rows, device=device)
    cut = TruncationColumns(truncation.log_min_p, truncation.top_k, truncation.top_p)
    with launching_on(logits):
        weigh_block[(num_rows, num_blocks)](
            logits,
            largest,
            temperatures,
            cut,
            masses,
            logits.stride(0),
            num_columns,
            width,
            block=BLOCK,
            num_warps=4,
        )
        find_floor[(num_rows,)](
            largest,
            temperatures,
            cut,
            masses,
            floors,
            width,
            num_blocks,
            wide=up_to_power(width),
            blocks=up_to_power(num_blocks),
            num_warps=4,
        )
    return floors
