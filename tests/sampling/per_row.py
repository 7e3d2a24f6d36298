"""One row decided by itself, step by step, with sorts and loops: the measure of all together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssd.sampling import SamplingParams
from tests.sampling.noise import gumbel_noise


def token_of_row(logits: Tensor, params: SamplingParams, seed: int, position: int) -> int:
    """y = argmax(z/T + g) over what truncation keeps; ties to the lowest id."""
    if params.greedy:
        return _first_largest(logits.float())
    scores = logits.float() / torch.tensor([params.temperature])
    total = scores + gumbel_noise([seed], [position], len(scores))[0]
    return _first_largest(torch.where(scores >= floor_of_row(scores, params), total, -math.inf))


def floor_of_row(scores: Tensor, params: SamplingParams) -> float:
    """The value under which min_p, then top_k, then top_p drop tokens, by a sort of the whole row."""
    ordered = scores.sort(descending=True).values
    peak, floor = float(ordered[0]), -math.inf
    if not math.isfinite(peak):
        return floor
    if params.min_p > 0:
        floor = peak + math.log(params.min_p)
    if 0 < params.top_k <= len(ordered):
        floor = max(floor, float(ordered[params.top_k - 1]))
    if params.top_p < 1:
        kept = ordered[ordered >= floor]
        weights = [int(each) for each in ((kept.double() - peak).exp() * 2.0**34).round().tolist()]
        needed, mass = max(params.top_p * sum(weights), 1.0), 0
        for value, weight in zip(kept.tolist(), weights, strict=True):
            mass += weight
            if mass >= needed:
                return max(floor, float(value))
    return floor


def _first_largest(values: Tensor) -> int:
    numbers = values.tolist()
    return numbers.index(max(numbers))
