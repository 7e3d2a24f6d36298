"""min_p, top_k and top_p, in this order, as one number a row: the value under which tokens are dropped.

All three keep the tokens that reach some border, so their composition does too, and no masked copy of the
row is needed. **Ties**: tokens equal to the border are all kept. top_k=5 may keep six tokens, top_p a little
more mass than the smallest set; no token is preferred for its id, and no sort order can matter.

top_p weighs tokens with whole numbers, exp(z − max) in units of 2⁻³⁴, whose sums are exact in float64: the
border cannot depend on the order of summation, and looking at a part of the row gives the same answer as
sorting it all. Probabilities under 2⁻³⁵ of the largest count as nothing.

Two forms with the same answer: one sorts whole rows, with tensors of fixed shape, for any device; the other
looks at few entries, on a CPU. A third sorts nothing: it is given each row's largest entries, for whoever
needs to know only which of these are kept.
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
_FAR_DOWN = 40.0  # and this all the more
_FLAT = 200 * _UNIT  # the mass of a row whose likeliest token has a probability of half a percent

# How far below the maximum top_p looks, step by step, before it takes everything that weighs at all.
_DEPTHS: tuple[float, ...] = (3.0, 6.0, 12.0, _WEIGHTLESS)


def truncation_floor(row: GroupedScores, params: SamplingParams) -> float:
    """The floor of one row of z/T."""
    truncation = Truncation.of([params], row.peaks.device)
    if truncation is None:
        return -float("inf")
    if row.peaks.device.type != "cpu":
        return float(whole_floors(row.groups.reshape(1, -1), truncation))
    peaks, only = row.peaks.unsqueeze(0), np.zeros(1, np.int64)
    rows = BatchedScores(row.groups.unsqueeze(0), peaks, only, np.ones(1, np.float32))
    return float(ragged_floors(rows, truncation)[0])


def whole_floors(scores: Tensor, truncation: Truncation) -> Tensor:
    """The smallest value of each row of z/T [R, V] that is kept; −inf where truncation is off.

    A row where everything is forbidden, or which holds NaN or +inf, has no floor: −inf.
    """
    nothing, width = -torch.inf, scores.shape[1]
    ordered = scores.sort(dim=1, descending=True).values
    peaks = ordered[:, :1]
    # p ≥ min_p · p_max, in logarithms.
    floors = (peaks.double() + truncation.log_min_p.unsqueeze(1)).float()
    # Where min_p left fewer than k tokens its floor is the higher one, and stands.
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
    """The same for the largest entries [R, N] of rows of z/T [R, V], descending; a floor below them is −inf.

    Where top_k is more than N, top_p is taken of all that min_p keeps: that floor is only nearly the same.
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
    place = torch.searchsorted(masses, (top_p * whole).clamp(min=1.0))
    border = torch.where(place < width, largest.gather(1, place.clamp(max=width - 1)), nothing)
    floors = torch.where(top_p < 1.0, floors.maximum(border), floors)
    return torch.where(peaks.isfinite(), floors, nothing).squeeze(1)


def ragged_floors(rows: BatchedScores, truncation: Truncation) -> Floats:
    """The same, on a CPU."""
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
    """Value of the k-th largest entry, or −inf where fewer reach the floor."""
    num_groups = rows.peaks.shape[1]
    found = np.full(len(rows), -np.inf, np.float32)
    by_peaks = rows.kth_peaks(np.clip(top_k, 1, num_groups))
    lowest = np.where(top_k <= num_groups, by_peaks, -np.inf)
    entries = rows.at_least(np.where(cut, np.maximum(floors, lowest), ABSENT)).descending()
    if len(entries):
        starts = entries.starts
        owners, counts = entries.rows[starts], np.diff(starts, append=len(entries))
        enough = counts >= top_k[owners]
        found[owners[enough]] = entries.values[(starts + top_k[owners] - 1)[enough]]
    return found


def _top_p_floors(rows: BatchedScores, top_p: Doubles, floors: Floats, cut: Flags) -> Floats:
    """Value of the token with which the mass of the larger ones first reaches top_p of what `floors` keep."""
    peaks = np.where(cut, rows.maxima, 0.0).astype(np.float64)
    lowest = np.maximum(floors, (peaks - _WEIGHTLESS).astype(np.float32))
    # Where the least and the most that the mass can be lead to the same border, that is the border. Where no
    # token stands out, they will not.
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
    found: Floats = borders[0]
    return found


def _borders(rows: BatchedScores, lowest: Floats, cut: Flags, peaks: Doubles, masses: Doubles) -> Floats:
    """Values at which the mass of the larger tokens reaches the smaller and the larger of `masses` [2, R].

    −inf and NaN where there is none.
    """
    found = np.full(masses.shape, -np.inf, np.float32)
    found[1] = np.nan
    needed = np.ceil(np.maximum(masses, 1.0)).astype(np.int64)
    for depth in _DEPTHS:
        deep = np.where(cut, np.maximum(lowest, (peaks - depth).astype(np.float32)), ABSENT)
        entries = rows.at_least(deep)
        held = np.bincount(entries.rows, _weights_of(entries, peaks), minlength=len(rows))
        reached = cut & (held >= needed[1])
        _note_borders(found, entries.of(reached), peaks, needed)
        cut = cut & ~reached
        if not cut.any():
            break
    return found


def _mass_bounds(rows: BatchedScores, floors: Floats, peaks: Doubles) -> Doubles:
    """The least and the most [2, R] that `_masses` can be, for a quarter of its cost: in float32."""
    totals = np.zeros(len(rows))
    for owners, values in rows.pieces(floors):
        values = _kept(values, owners, floors, peaks)
        shares = values.sub_(torch.from_numpy(rows.maxima[owners]).unsqueeze(1)).exp_().sum(1)
        totals += np.bincount(owners, shares.numpy(), minlength=len(rows))
    # Of a difference of up to 25 float32 loses 2⁻²⁰, exp another 2⁻²², a sum of 64 terms at most 2⁻¹⁸.
    # Where a weight is made whole it changes by half a unit at most.
    slack = totals * _UNIT * 2.0**-17 + rows.width
    return np.stack((totals * _UNIT - slack, totals * _UNIT + slack))


def _masses(rows: BatchedScores, floors: Floats, peaks: Doubles) -> Doubles:
    """Weight of all of each row's tokens ≥ its floor."""
    totals = np.zeros(len(rows))
    for owners, values in rows.pieces(floors):
        values = _kept(values, owners, floors, peaks)
        weights = _weights(values, torch.from_numpy(peaks[owners]).unsqueeze(1))
        totals += np.bincount(owners, weights.sum(1).numpy(), minlength=len(rows))
    return totals


def _kept(values: Tensor, owners: Ints, floors: Floats, peaks: Doubles) -> Tensor:
    """Groups [N, 64] with all that lies under their rows' floors so far down that it weighs nothing.

    Not at −inf, of which exp takes twenty times as long.
    """
    lowest = torch.from_numpy(floors[owners]).unsqueeze(1)
    rest = torch.from_numpy((peaks - _FAR_DOWN).astype(np.float32)[owners]).unsqueeze(1)
    if (floors[owners] > peaks[owners] - (_WEIGHTLESS - 0.1)).any():
        return torch.where(values >= lowest, values, rest)
    # What lies below such a floor weighs nothing by itself.
    return torch.maximum(values, rest, out=values)


def _note_borders(found: Floats, entries: Entries, peaks: Doubles, needed: Ints) -> None:
    """Into `found` [2, R], for each row that has entries: where their mass is what is needed."""
    if not len(entries):
        return
    ordered = entries.descending()
    # Whole numbers: the sum runs on through all rows, and a difference of two is one row's own.
    masses = _weights_of(ordered, peaks).astype(np.int64).cumsum()
    starts = ordered.starts
    owners = ordered.rows[starts]
    before = np.where(starts > 0, masses[starts - 1], 0)
    found[:, owners] = ordered.values[np.searchsorted(masses, before + needed[:, owners])]


def _weights_of(entries: Entries, peaks: Doubles) -> Doubles:
    found: Doubles = _weights(torch.from_numpy(entries.values), torch.from_numpy(peaks[entries.rows])).numpy()
    return found


def _weights(values: Tensor, peaks: Tensor) -> Tensor:
    """Unnormalised probabilities in whole units, in float64."""
    # In place: a fresh buffer of a megabyte costs more in page faults than the arithmetic.
    return values.double().sub_(peaks).exp_().mul_(_UNIT).round_()
