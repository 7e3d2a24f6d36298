"""Finds a draft's likeliest tokens in each row by z/T + g, reading the logits once.

The first launch finds the C best scores of each block and their log-sum-exp; the second joins the blocks. The
torch form on CPUs (`draft/tree/children.py`) adds noise to the 256 largest logits only; here every token gets
noise, since that needs no second read. `selftest/kernels.py` contains the reference.
"""

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.scores import best_of, block_of_scores, log_sum
from ssd.sampling.draws import Draws

BLOCK = 1024


@jit(do_not_specialize=("num_columns", "num_blocks"))
def children_of_blocks(
    logits,
    temperatures,
    seeds,
    positions,
    floors,
    head_tokens,
    is_murmur,
    bests,
    columns_of_bests,
    masses,
    row_stride,
    num_columns,
    num_blocks,
    count: tl.constexpr,
    block: tl.constexpr,
    has_floors: tl.constexpr,
    has_head_tokens: tl.constexpr,
    has_murmur: tl.constexpr,
):
    """One program per row and block."""
    row = tl.program_id(0).to(tl.int64)
    columns, scores = block_of_scores(
        logits,
        temperatures,
        seeds,
        positions,
        floors,
        head_tokens,
        is_murmur,
        row,
        row_stride,
        num_columns,
        block,
        has_floors,
        has_head_tokens,
        has_murmur,
    )
    place = row * num_blocks + tl.program_id(1)
    tl.store(masses + place, log_sum(scores))
    for rank in tl.static_range(count):
        best, column = best_of(scores, columns, num_columns)
        tl.store(bests + place * count + rank, best)
        tl.store(columns_of_bests + place * count + rank, column)
        scores = tl.where(columns == column, float("-inf"), scores)


@jit(do_not_specialize=("num_blocks",))
def join_children(
    bests,
    columns_of_bests,
    masses,
    head_tokens,
    tokens,
    raws,
    num_blocks,
    count: tl.constexpr,
    width: tl.constexpr,
    blocks: tl.constexpr,
    has_head_tokens: tl.constexpr,
):
    """One program per row. `width` and `blocks` are powers of two, at least the actual sizes."""
    row = tl.program_id(0).to(tl.int64)
    places, numbers = tl.arange(0, width), tl.arange(0, blocks)
    is_place = places < num_blocks * count
    scores = tl.load(bests + row * num_blocks * count + places, mask=is_place, other=float("-inf"))
    columns = tl.load(columns_of_bests + row * num_blocks * count + places, mask=is_place, other=2147483647)
    mass = tl.load(masses + row * num_blocks + numbers, mask=numbers < num_blocks, other=float("-inf"))
    whole = log_sum(mass)
    for rank in tl.static_range(count):
        best, column = best_of(scores, columns, 2147483647)
        token = column.to(tl.int64)
        if has_head_tokens:
            token = tl.load(head_tokens + column)
        # −inf: the row has no further child.
        is_child = best > float("-inf")
        tl.store(tokens + row * count + rank, tl.where(is_child, token, 0))
        tl.store(raws + row * count + rank, tl.where(is_child, best - whole, float("-inf")))
        scores = tl.where(columns == column, float("-inf"), scores)


def children_of(
    logits: Tensor, draws: Draws, floors: Tensor | None, count: int, head_tokens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `count` best tokens of each row [R, C] and their log-probabilities; 0 and −inf if there are fewer.

    With `head_tokens`, these are the tokens of the logits' columns.
    """
    num_rows, num_columns = logits.shape
    num_blocks = -(-num_columns // BLOCK)
    device = logits.device
    bests = torch.empty(num_rows, num_blocks, count, device=device)
    columns = torch.empty(num_rows, num_blocks, count, dtype=torch.int32, device=device)
    masses = torch.empty(num_rows, num_blocks, device=device)
    tokens = torch.empty(num_rows, count, dtype=torch.int64, device=device)
    raws = torch.empty(num_rows, count, device=device)
    has_head_tokens = head_tokens is not None
    with launching_on(logits):
        children_of_blocks[(num_rows, num_blocks)](
            logits,
            draws.temperatures,
            draws.seeds,
            draws.positions,
            draws.temperatures if floors is None else floors,
            tokens if head_tokens is None else head_tokens,
            tokens if draws.is_murmur is None else draws.is_murmur,
            bests,
            columns,
            masses,
            logits.stride(0),
            num_columns,
            num_blocks,
            count=count,
            block=BLOCK,
            has_floors=floors is not None,
            has_head_tokens=has_head_tokens,
            has_murmur=draws.is_murmur is not None,
            num_warps=4,
        )
        join_children[(num_rows,)](
            bests,
            columns,
            masses,
            tokens if head_tokens is None else head_tokens,
            tokens,
            raws,
            num_blocks,
            count=count,
            width=1 << (num_blocks * count - 1).bit_length(),
            blocks=1 << (num_blocks - 1).bit_length(),
            has_head_tokens=has_head_tokens,
            num_warps=4,
        )
    return tokens, raws
