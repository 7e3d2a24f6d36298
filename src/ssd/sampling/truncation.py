"""min_p, top_k and top_p, in this order, as one number: the value under which a row's tokens are dropped.

All three keep the tokens that reach some border, so their composition does too, and no masked copy of the
row is needed. **Ties**: tokens equal to the border are all kept. top_k=5 may keep six tokens, top_p a little
more mass than the smallest set; no token is preferred for its id, and no sort order can matter.

top_p weighs tokens with whole numbers, exp(z − max) in units of 2⁻³⁴, whose sums are exact in float64: the
border cannot depend on the order of summation, and looking at a part of the row gives the same answer as
sorting it all. Probabilities under 2⁻³⁵ of the largest count as nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssd.sampling.params import SamplingParams
from ssd.sampling.select import WideRow

_UNIT = 2.0**34  # 2**19 tokens of the largest weight sum to 2**53, up to where float64 holds every integer
_WEIGHTLESS = 24.3  # exp(−24.3)·2³⁴ rounds to 0

# How far below the maximum top_p looks, step by step, before it takes everything that weighs at all.
_DEPTHS: tuple[float, ...] = (3.0, 6.0, 12.0, _WEIGHTLESS)


def truncation_floor(row: WideRow, params: SamplingParams) -> float:
    """The smallest value (of z/T) that min_p, then top_k, then top_p keep; −inf where they are off.

    A row where everything is forbidden, or which holds NaN or +inf, has no floor: −inf.
    """
    if not params.truncated:
        return -math.inf
    floor = -math.inf
    if params.min_p > 0.0:
        # p ≥ min_p · p_max, in logarithms.
        floor = max(floor, row.maximum + math.log(params.min_p))
    if params.top_k > 0:
        # Where min_p left fewer than k tokens its floor is the higher one, and stands.
        floor = max(floor, row.kth_largest(params.top_k))
    if params.top_p < 1.0:
        floor = max(floor, _top_p_floor(row, params.top_p, floor))
    return floor


def _top_p_floor(row: WideRow, top_p: float, floor: float) -> float:
    """Value of the token with which the mass of the larger ones first reaches top_p of what `floor` keeps."""
    peak = row.maximum
    if not math.isfinite(peak):
        return -math.inf
    total = _mass(row, peak, floor)
    needed = max(top_p * total, 1.0)
    for depth in _DEPTHS:
        values = row.at_least(max(floor, peak - depth))[1]
        if float(_weights(values, peak).sum()) >= needed:
            break
    values = values.sort(descending=True).values
    reached = torch.searchsorted(_weights(values, peak).cumsum(0), needed)
    return float(values[reached])


def _mass(row: WideRow, peak: float, floor: float) -> float:
    """Weight of all tokens ≥ floor."""
    lightest = peak - _WEIGHTLESS
    # Without a higher floor there is nothing to pick out: what lies lower weighs 0.
    values = row.groups if floor <= lightest else row.at_least(floor)[1]
    return float(_weights(values, peak).sum())


def _weights(values: Tensor, peak: float) -> Tensor:
    """Unnormalised probabilities in whole units."""
    # In place: a fresh buffer of a megabyte costs more in page faults than the arithmetic.
    return values.double().sub_(peak).exp_().mul_(_UNIT).round_()
