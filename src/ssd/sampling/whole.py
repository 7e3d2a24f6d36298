"""The coupled decision with noise for every token: tensors of fixed shape, on any device.

Never reads a value on the host, and no shape depends on data. This is the reference for the other
implementations (`pruned.py` and a kernel).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd.sampling.draws import Draws
from ssd.sampling.noise import noise_of_rows
from ssd.sampling.select import argmax
from ssd.sampling.truncation import whole_floors


def decide_whole(logits: Tensor, draws: Draws) -> Tensor:
    """The token [R] of each row of logits [R, V]. The lowest id wins a tie; 0 if all logits are −inf."""
    is_greedy = draws.temperatures == 0.0
    scores = scaled(logits, torch.where(is_greedy, 1.0, draws.temperatures))
    floors = None if draws.truncation is None else whole_floors(scores, draws.truncation)
    return torch.where(is_greedy, argmax(scores), draw_whole(scores, draws, floors))


def draw_whole(scores: Tensor, draws: Draws, floors: Tensor | None) -> Tensor:
    """Samples a token [R] from each row of scores z/T, given the floors [R] of truncation."""
    total = noise_of_rows(draws.seeds, draws.positions, scores.shape[1]).add_(scores)
    if floors is not None:
        total.masked_fill_(scores < floors.unsqueeze(1), -torch.inf)
    return argmax(total)


def scaled(logits: Tensor, temperatures: Tensor) -> Tensor:
    """z/T in float32."""
    return logits.float() / temperatures.unsqueeze(1)
