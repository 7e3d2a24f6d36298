"""Log-probabilities from raw logits, before any processor and at temperature 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.sampling.rows import TokenLogprobs
from ssd.sampling.select import GroupedScores


def token_logprobs(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """For each row [R, V] its token's log-probability and rank, and the `num_top` most likely tokens."""
    if len(logits) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens for {len(logits)} rows of logits: pass one token a row")
    return [_row_logprobs(row.float(), token, num_top) for row, token in zip(logits, tokens, strict=True)]


def _row_logprobs(logits: Tensor, token: int, num_top: int) -> TokenLogprobs:
    row = GroupedScores.of(logits)
    peak = row.maximum
    # One row at a time: the bits of a sum must not depend on the other rows of the batch.
    normaliser = peak + math.log(float((logits - peak).exp_().sum(dtype=torch.float64)))
    value = float(logits[token])
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        ids, values = row.largest(num_top)
        top = tuple(
            (int(i), float(v) - normaliser) for i, v in zip(ids.tolist(), values.tolist(), strict=True)
        )
    rank = 1 + int((row.at_least(value)[1] > value).sum())
    return TokenLogprobs(token=token, logprob=value - normaliser, rank=rank, top=top)
