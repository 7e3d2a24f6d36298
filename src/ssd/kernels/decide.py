"""Decides a token for each row of logits at the end of a target's step.

Two launches: the first finds the best token by z/T + g in each block of the vocabulary, the second the best
of each row's blocks. `decide_whole` of `sampling` is the reference, except that NaN wins there and is ignored
here.
"""

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.scores import best_of, block_of_scores
from ssd.sampling.draws import Draws

BLOCK = 1024
"""Tokens per program."""


@jit(do_not_specialize=("num_columns", "num_blocks"))
def best_of_blocks(
    logits,
    temperatures,
    seeds,
    positions,
    floors,
    bests,
    tokens,
    row_stride,
    num_columns,
    num_blocks,
    block: tl.constexpr,
    has_floors: tl.constexpr,
):
    """One program per row and block."""
    row = tl.program_id(0).to(tl.int64)
    columns, scores = block_of_scores(
        logits,
        temperatures,
        seeds,
        positions,
        floors,
        logits,
        logits,
        row,
        row_stride,
        num_columns,
        block,
        has_floors,
        has_head_tokens=False,
        has_murmur=False,
    )
    best, column = best_of(scores, columns, num_columns)
    tl.store(bests + row * num_blocks + tl.program_id(1), best)
    tl.store(tokens + row * num_blocks + tl.program_id(1), column)


@jit(do_not_specialize=("num_blocks",))
def settle(bests, candidates, tokens, num_blocks, block: tl.constexpr):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, block)
    is_place = places < num_blocks
    scores = tl.load(bests + row * num_blocks + places, mask=is_place, other=float("-inf"))
    best = tl.max(scores, 0)
    found = tl.load(candidates + row * num_blocks + places, mask=is_place, other=0)
    token = tl.min(tl.where(is_place & (scores == best), found, 2147483647), 0).to(tl.int64)
    tl.store(tokens + row, tl.where(token == 2147483647, 0, token))


def decide_rows(logits: Tensor, draws: Draws, floors: Tensor | None) -> Tensor:
    """The token [R] of each row of logits [R, V]; `floors` [R] are the floors of truncation."""
    num_rows, num_columns = logits.shape
    num_blocks = -(-num_columns // BLOCK)
    bests = torch.empty(num_rows, num_blocks, device=logits.device)
    candidates = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    with launching_on(logits):
        best_of_blocks[(num_rows, num_blocks)](
            logits,
            draws.temperatures,
            draws.seeds,
            draws.positions,
            draws.temperatures if floors is None else floors,
            bests,
            candidates,
            logits.stride(0),
            num_columns,
            num_blocks,
            block=BLOCK,
            has_floors=floors is not None,
            num_warps=4,
        )
        settle[(num_rows,)](
            bests,
            candidates,
            tokens,
            num_blocks,
            block=1 << (num_blocks - 1).bit_length(),
            num_warps=1,
        )
    return tokens
