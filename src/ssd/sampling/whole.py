"""The coupled decision with noise for every token: tensors of fixed shape, on any device.

Nothing here waits for a value: no host read, no shape that depends on data. This form says what the answer
is; others (`pruned.py`, a kernel) are measured against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd.sampling.draws import Draws
from ssd.sampling.noise import noise_of_rows
from ssd.sampling.select import argmax
from ssd.sampling.truncation import whole_floors


def decide_whole(logits: Tensor, draws: Draws) -> Tensor:
    """The token [R] of each row of logits [R, V]. Ties go to the lowest id; 0 where all is −inf."""
    is_greedy = draws.temperatures == 0.0
    scores = scaled(logits, torch.where(is_greedy, 1.0, draws.temperatures))
    floors = None if draws.truncation is None else whole_floors(scores, draws.truncation)
    return torch.where(is_greedy, argmax(scores), draw_whole(scores, draws, floors))


def draw_whole(scores: Tensor, draws: Draws, floors: Tensor | None) -> Tensor:
    """The same for scores z/T, where the floors [R] of truncation are known."""
    total = noise_of_rows(draws.seeds, draws.positions, scores.shape[1]).add_(scores)
    if floors is not None:
        total.masked_fill_(scores < floors.unsqueeze(1), -torch.inf)
    return argmax(total)


def scaled(logits: Tensor, temperatures: Tensor) -> Tensor:
    """z/T in float32."""
    return logits.float() / temperatures.unsqueeze(1)
