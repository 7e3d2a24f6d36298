"""What a decoder computes for each row between its linears, one launch each: a residual's norm, and SiLU.

The torch forms are in `models/row_math.py`. A row's bits do not depend on the other rows: a program computes
one row, or a part of it, in an order that only the row's size decides. Sums are rounded where torch rounds
them. Knows rows. Does not know layers.
"""

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl

BLOCK = 1024
"""Elements per program of `silu_and_mul`."""
_WIDE = 2048
"""Elements of a row that four warps hold."""


@jit()
def add_and_norm(hidden, delta, weight, added, normed, size, eps, block: tl.constexpr):
    """One program per row. `block`: a power of two, at least the row's size."""
    places = tl.arange(0, block)
    is_place = places < size
    spots = tl.program_id(0).to(tl.int64) * size + places
    before = tl.load(hidden + spots, mask=is_place, other=0.0).to(tl.float32)
    change = tl.load(delta + spots, mask=is_place, other=0.0).to(tl.float32)
    total = (before + change).to(added.dtype.element_ty)
    tl.store(added + spots, total, mask=is_place)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    weights = tl.load(weight + places, mask=is_place, other=0.0).to(tl.float32)
    tl.store(normed + spots, (wide * scale * weights).to(normed.dtype.element_ty), mask=is_place)


@jit()
def silu_and_mul(gate_up, out, size, block: tl.constexpr):
    """One program per row and block of its outputs."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * block + tl.arange(0, block)
    is_place = places < size
    gate = tl.load(gate_up + row * 2 * size + places, mask=is_place, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + places, mask=is_place, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + places, (activated * up).to(out.dtype.element_ty), mask=is_place)


def add_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """hidden + delta [rows, size], and its RMSNorm."""
    num_rows, size = hidden.shape
    added, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    block = 1 << (size - 1).bit_length()
    with launching_on(hidden):
        add_and_norm[(num_rows,)](
            hidden,
            delta,
            weight,
            added,
            normed,
            size,
            eps,
            block=block,
            num_warps=4 if block <= _WIDE else 8,
        )
    return added, normed


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of rows [gate | up]."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    with launching_on(gate_up):
        silu_and_mul[(num_rows, -(-size // BLOCK))](gate_up, out, size, block=BLOCK, num_warps=4)
    return out
