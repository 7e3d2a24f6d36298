"""min_p, top_k and top_p, in this order, as one floor per row: tokens below it are dropped.

Each of the three keeps the tokens that reach some value, so their composition does too, and no masked copy of
the row is needed. **Ties**: tokens equal to the floor are all kept. top_k=5 may keep six tokens, and top_p a
little more mass than the smallest set; so the result depends on neither token ids nor sort order.

For top_p a token's weight is exp(z − max) rounded to a multiple of 2⁻³⁴. Sums of weights are exact in
float64, so the floor does not depend on the order of summation, and a part of the row gives the same floor as
sorting all of it. Probabilities under 2⁻³⁵ of the largest have weight 0.

`whole_floors` sorts whole rows, with tensors of fixed shape, on any device; `ragged_floors` visits few
entries, on a CPU, with the same result. `candidate_floors` needs only each row's largest entries, if only
those can be kept.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.sampling.draws import Truncation
from ssd.sampling.params import SamplingParams
from ssd.sampling.ragged import ABSENT, BatchedScores, Entries, Flags, Floats, Ints
from ssd.sampling.select import GroupedScores

Doubles = NDArray[np.float64]

_UNIT = 2.0**34  # 2**19 tokens of the largest weight sum to 2**53, up to where float64 holds every integer
_WEIGHTLESS = 24.3  # exp(−24.3)·2³⁴ rounds to 0
_FAR_DOWN = 40.0  # far enough below the maximum that the weight is 0
_FLAT = 200 * _UNIT  # the mass of a row whose likeliest token has a probability of half a percent

# Depths below the maximum that top_p searches in turn, up to the last one with any weight.
_DEPTHS: tuple[float, ...] = (3.0, 6.0, 12.0, _WEIGHTLESS)


def truncation_floor(row: GroupedScores, params: SamplingParams) -> float:
    """The smallest kept value of one row of z/T; −inf if truncation is off."""
    truncation = Truncation.of([params], row.peaks.device)
    if truncation is None:
        return -float("inf")
    if row.peaks.device.type != "cpu":
        return float(whole_floors(row.groups.reshape(1, -1), truncation))
    peaks, only = row.peaks.unsqueeze(0), np.zeros(1, np.int64)
    rows = BatchedScores(row.groups.unsqueeze(0), peaks, only, np.ones(1, np.float32))
    return float(ragged_floors(rows, truncation)[0])


def whole_floors(scores: Tensor, truncation: Truncation) -> Tensor:
    """The smallest kept value of each row of z/T [R, V]; −inf if truncation is off for the row.

    Also −inf for a row without allowed tokens, or with NaN or +inf.
    """
    nothing, width = -torch.inf, scores.shape[1]
    ordered = scores.sort(dim=1, descending=True).values
    peaks = ordered[:, :1]
    # p ≥ min_p · p_max, in logarithms.
    floors = (peaks.double() + truncation.log_min_p.unsqueeze(1)).float()
    # If min_p leaves fewer than k tokens, its floor is higher than the k-th value, and remains.
    top_k = truncation.top_k.unsqueeze(1)
    kth = ordered.gather(1, (top_k - 1).clamp(0, width - 1))
    floors = floors.maximum(torch.where((top_k > 0) & (top_k <= width), kth, nothing))
    weights = _weights(torch.where(ordered >= floors, ordered, nothing), peaks.double())
    masses = weights.cumsum(1)
    top_p = truncation.top_p.unsqueeze(1)
    needed = (top_p * masses[:, -1:]).clamp(min=1.0)
    border = ordered.gather(1, torch.searchsorted(masses, needed).clamp(max=width - 1))
    floors = torch.where(top_p < 1.0, floors.maximum(border), floors)
    return torch.where(peaks.isfinite(), floors, nothing).squeeze(1)


def candidate_floors(largest: Tensor, scores: Tensor, truncation: Truncation) -> Tensor:
    """Like `whole_floors`, given the N largest entries [R, N], descending, of rows of z/T [R, V].

    Returns −inf instead of a floor below these entries. If top_k exceeds N, top_p applies to all tokens that
    min_p keeps, and the floor is approximate.
    """
    nothing, width = -torch.inf, largest.shape[1]
    peaks = largest[:, :1]
    floors = (peaks.double() + truncation.log_min_p.unsqueeze(1)).float()
    top_k = truncation.top_k.unsqueeze(1)
    kth = largest.gather(1, (top_k - 1).clamp(0, width - 1))
    floors = floors.maximum(torch.where((top_k > 0) & (top_k <= width), kth, nothing))
    whole = _weights(torch.where(scores >= floors, scores, nothing), peaks.double()).sum(1, keepdim=True)
    masses = _weights(torch.where(largest >= floors, largest, nothing), peaks.double()).cumsum(1)
    top_p = truncation.top_p.unsqueeze(1)
    index = torch.searchsorted(masses, (top_p * whole).clamp(min=1.0))
    border = torch.where(index < width, largest.gather(1, index.clamp(max=width - 1)), nothing)
    floors = torch.where(top_p < 1.0, floors.maximum(border), floors)
    return torch.where(peaks.isfinite(), floors, nothing).squeeze(1)


def ragged_floors(rows: BatchedScores, truncation: Truncation) -> Floats:
    """`whole_floors` on a CPU, without sorting whole rows."""
    is_sound = np.isfinite(rows.maxima)
    peaks = np.where(is_sound, rows.maxima, 0.0).astype(np.float64)
    floors = np.where(is_sound, peaks + truncation.log_min_p.numpy(), -np.inf).astype(np.float32)
    top_k, top_p = truncation.top_k.numpy(), truncation.top_p.numpy()
    cut = is_sound & (top_k > 0) & (top_k < rows.width)
    if cut.any():
        floors = np.maximum(floors, _top_k_floors(rows, top_k, floors, cut))
    cut = is_sound & (top_p < 1.0)
    if cut.any():
        floors = np.maximum(floors, _top_p_floors(rows, top_p, floors, cut))
    return floors


def _top_k_floors(rows: BatchedScores, top_k: Ints, floors: Floats, cut: Flags) -> Floats:
    """Value of the k-th largest entry; −inf if fewer reach the floor."""
    num_groups = rows.peaks.shape[1]
    kth = np.full(len(rows), -np.inf, np.float32)
    by_peaks = rows.kth_peaks(np.clip(top_k, 1, num_groups))
    lowest = np.where(top_k <= num_groups, by_peaks, -np.inf)
    entries = rows.at_least(np.where(cut, np.maximum(floors, lowest), ABSENT)).descending()
    if len(entries):
        starts = entries.starts
        owners, counts = entries.rows[starts], np.diff(starts, append=len(entries))
        enough = counts >= top_k[owners]
        kth[owners[enough]] = entries.values[(starts + top_k[owners] - 1)[enough]]
    return kth


def _top_p_floors(rows: BatchedScores, top_p: Doubles, floors: Floats, cut: Flags) -> Floats:
    """Value of the token at which the mass of the largest tokens reaches top_p of those above `floors`."""
    peaks = np.where(cut, rows.maxima, 0.0).astype(np.float64)
    lowest = np.maximum(floors, (peaks - _WEIGHTLESS).astype(np.float32))
    # If the lower and the upper bound of the mass lead to the same border, the border is exact. In a flat row
    # they hardly ever do, so compute its exact mass at once.
    masses = _mass_bounds(rows, np.where(cut, lowest, ABSENT), peaks)
    flat = cut & (masses[1] > _FLAT)
    if flat.any():
        masses[:, flat] = _masses(rows, np.where(flat, lowest, ABSENT), peaks)[flat]
    borders = _borders(rows, lowest, cut, peaks, top_p * masses)
    unsure = cut & (borders[0] != borders[1])
    if unsure.any():
        exact = _masses(rows, np.where(unsure, lowest, ABSENT), peaks)
        again = _borders(rows, lowest, unsure, peaks, top_p * np.stack((exact, exact)))
        borders = np.where(unsure, again, borders)
    lower: Floats = borders[0]
    return lower


def _borders(rows: BatchedScores, lowest: Floats, cut: Flags, peaks: Doubles, masses: Doubles) -> Floats:
    """Values at which the mass of the largest tokens reaches each of two `masses` [2, R].

    −inf for the first and NaN for the second if there is none.
    """
    borders = np.full(masses.shape, -np.inf, np.float32)
    borders[1] = np.nan
    needed = np.ceil(np.maximum(masses, 1.0)).astype(np.int64)
    for depth in _DEPTHS:
        deep = np.where(cut, np.maximum(lowest, (peaks - depth).astype(np.float32)), ABSENT)
        entries = rows.at_least(deep)
        held = np.bincount(entries.rows, _weights_of(entries, peaks), minlength=len(rows))
        reached = cut & (held >= needed[1])
        _note_borders(borders, entries.of(reached), peaks, needed)
        cut = cut & ~reached
        if not cut.any():
            break
    return borders


def _mass_bounds(rows: BatchedScores, floors: Floats, peaks: Doubles) -> Doubles:
    """Lower and upper bounds [2, R] of `_masses`, computed in float32 in a quarter of the time."""
    totals = np.zeros(len(rows))
    for owners, values in rows.pieces(floors):
        values = _kept(values, owners, floors, peaks)
        shares = values.sub_(torch.from_numpy(rows.maxima[owners]).unsqueeze(1)).exp_().sum(1)
        totals += np.bincount(owners, shares.numpy(), minlength=len(rows))
    # Errors: 2⁻²⁰ from a difference of up to 25 in float32, 2⁻²² from exp, at most 2⁻¹⁸ from a sum of 64.
    # Rounding a weight changes it by half a unit at most.
    slack = totals * _UNIT * 2.0**-17 + rows.width
    return np.stack((totals * _UNIT - slack, totals * _UNIT + slack))


def _masses(rows: BatchedScores, floors: Floats, peaks: Doubles) -> Doubles:
    """Total weight of each row's tokens ≥ its floor."""
    totals = np.zeros(len(rows))
    for owners, values in rows.pieces(floors):
        values = _kept(values, owners, floors, peaks)
        weights = _weights(values, torch.from_numpy(peaks[owners]).unsqueeze(1))
        totals += np.bincount(owners, weights.sum(1).numpy(), minlength=len(rows))
    return totals


def _kept(values: Tensor, owners: Ints, floors: Floats, peaks: Doubles) -> Tensor:
    """Groups [N, 64] with values under their rows' floors lowered until their weight is 0.

    Not to −inf: exp takes twenty times as long for it.
    """
    lowest = torch.from_numpy(floors[owners]).unsqueeze(1)
    rest = torch.from_numpy((peaks - _FAR_DOWN).astype(np.float32)[owners]).unsqueeze(1)
    if (floors[owners] > peaks[owners] - (_WEIGHTLESS - 0.1)).any():
        return torch.where(values >= lowest, values, rest)
    # Values below such a low floor have weight 0 anyway.
    return torch.maximum(values, rest, out=values)


def _note_borders(borders: Floats, entries: Entries, peaks: Doubles, needed: Ints) -> None:
    """Writes to `borders` [2, R], for rows with entries, the value at which their mass reaches `needed`."""
    if not len(entries):
        return
    ordered = entries.descending()
    # Sums of integers are exact, so one cumulative sum serves all rows.
    masses = _weights_of(ordered, peaks).astype(np.int64).cumsum()
    starts = ordered.starts
    owners = ordered.rows[starts]
    before = np.where(starts > 0, masses[starts - 1], 0)
    borders[:, owners] = ordered.values[np.searchsorted(masses, before + needed[:, owners])]


def _weights_of(entries: Entries, peaks: Doubles) -> Doubles:
    weights = _weights(torch.from_numpy(entries.values), torch.from_numpy(peaks[entries.rows]))
    return np.asarray(weights.numpy(), np.float64)


def _weights(values: Tensor, peaks: Tensor) -> Tensor:
    """Unnormalised probabilities as multiples of the unit, in float64."""
    # In place: page faults of a new buffer of a megabyte take longer than the arithmetic.
    return values.double().sub_(peaks).exp_().mul_(_UNIT).round_()
