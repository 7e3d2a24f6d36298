"""The coupled decision on a CPU, where noise is dear: only tokens that can win get any.

A score b that some token reaches with its noise bounds the rest: no token below b − NOISE_CEILING can win,
whatever its noise. Together with the floor that truncation sets this leaves a few tokens out of a vocabulary
when the model is sure, the temperature low or the truncation tight. Where it leaves many, noise for the whole
row is cheaper. The answer is that of `whole.py` either way. Knows scores and noise, not parameters.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ssd.sampling.draws import Draws
from ssd.sampling.noise import NOISE_BOTTOM, NOISE_CEILING, noise_of_tokens
from ssd.sampling.ragged import ABSENT, BatchedScores, Entries, Flags, Floats, Ints
from ssd.sampling.select import argmax_of_groups, grouped
from ssd.sampling.truncation import ragged_floors
from ssd.sampling.whole import draw_whole, scaled

# A token costs four times as much noise on its own as within a whole row, and has to be picked out.
_WORTHWHILE = 0.15
# Where so small a share of the groups is left, looking for a bound costs more than it saves.
_CLEAR = 0.1
# How many groups' best tokens are tried to find a bound.
_SCOUTS = 32
# Entries of whole rows that get noise at once: their scores stay in a core's cache.
_WHOLE_ENTRIES = 1 << 16


def decide_pruned(logits: Tensor, draws: Draws) -> Tensor:
    """The token [R] of each row of logits [R, V]. Ties go to the lowest id; 0 where all is −inf."""
    groups = grouped(logits)
    peaks = groups.amax(-1)
    tokens = torch.zeros(len(logits), dtype=torch.int64)
    is_greedy = draws.temperatures.numpy() == 0.0
    greedy, random = (torch.from_numpy(np.flatnonzero(each)) for each in (is_greedy, ~is_greedy))
    if len(greedy):
        tokens[greedy] = argmax_of_groups(groups, peaks, greedy)
    if len(random):
        some = draws if not len(greedy) else draws.at(random)
        rows = BatchedScores(groups, peaks, random.numpy(), some.temperatures.numpy())
        tokens[random] = _draw(rows, some, logits, random)
    return tokens


def _draw(rows: BatchedScores, draws: Draws, logits: Tensor, numbers: Tensor) -> Tensor:
    """The tokens of the rows, which have these numbers in the logits."""
    floors = np.full(len(rows), -np.inf, np.float32)
    if draws.truncation is not None:
        floors = ragged_floors(rows, draws.truncation)
    few, bounds = _few(rows, floors, draws)
    tokens = np.zeros(len(rows), np.int64)
    if few.any():
        _note_winners(tokens, rows.at_least(np.where(few, bounds, ABSENT)), draws)
    found = torch.from_numpy(tokens)
    many, step = torch.from_numpy(np.flatnonzero(~few)), max(1, _WHOLE_ENTRIES // rows.width)
    for start in range(0, len(many), step):
        some = many[start : start + step]
        mine = draws.at(some)
        kept = None if mine.truncation is None else torch.from_numpy(floors)[some]
        scores = scaled(_rows_at(logits, numbers[some]), mine.temperatures)
        found[some] = draw_whole(scores, mine, kept)
    return found


def _rows_at(logits: Tensor, numbers: Tensor) -> Tensor:
    """Some rows, ascending; not copied where they lie side by side."""
    first, last = numbers.numpy()[[0, -1]].tolist()
    return logits[first : last + 1] if last - first == len(numbers) - 1 else logits[numbers]


def _few(rows: BatchedScores, floors: Floats, draws: Draws) -> tuple[Flags, Floats]:
    """Rows of which only few tokens can win, and for them a floor that no winner lies under."""
    # NaN and +inf are for whoever looks at the whole row.
    is_sound = rows.maxima < np.inf
    # Whatever its noise, the largest score reaches this.
    bounds = np.maximum(floors, _below(rows.maxima + np.float32(NOISE_BOTTOM)))
    clear = is_sound & (rows.reach(bounds) <= _CLEAR)
    # A better bound usually comes out a little over the largest score.
    hoped = np.maximum(bounds, rows.maxima - np.float32(NOISE_CEILING))
    open_rows = is_sound & ~clear
    open_rows &= rows.estimated_share(hoped, open_rows) <= 2 * _WORTHWHILE
    if open_rows.any():
        bounds = np.maximum(bounds, _scouted(rows, bounds, open_rows, draws))
        open_rows &= rows.estimated_share(bounds, open_rows) <= _WORTHWHILE
    return clear | open_rows, bounds


def _scouted(rows: BatchedScores, floors: Floats, wanted: Flags, draws: Draws) -> Floats:
    """A floor for each row that is wanted, from a few likely winners; −inf for others."""
    num_scouts = min(_SCOUTS, rows.peaks.shape[1])
    leaders = rows.kth_peaks(np.full(len(rows), num_scouts))
    scouts = rows.at_least(np.where(wanted, np.maximum(floors, leaders), ABSENT))
    bounds = np.full(len(rows), -np.inf, np.float32)
    if len(scouts):
        starts = scouts.starts
        bounds[scouts.rows[starts]] = _below(np.maximum.reduceat(_perturbed(scouts, draws), starts))
    return bounds


def _below(reached: Floats) -> Floats:
    """The floor under which nothing wins against a score that is reached with noise.

    The last term is for rounding to float32, of this and of score + g: what lies lower cannot even tie.
    """
    best = reached.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (best - NOISE_CEILING - np.abs(best) * 2.0**-21).astype(np.float32)


def _note_winners(tokens: Ints, entries: Entries, draws: Draws) -> None:
    """Into `tokens`, for each row that has entries: the id of the largest, perturbed."""
    if not len(entries):
        return
    totals, starts = _perturbed(entries, draws), entries.starts
    largest = np.zeros(len(tokens), np.float32)
    largest[entries.rows[starts]] = np.maximum.reduceat(totals, starts)
    winners = np.flatnonzero(totals == largest[entries.rows])
    # Backwards: of equals the first is written last, and has the lowest id.
    tokens[entries.rows[winners[::-1]]] = entries.ids[winners[::-1]]


def _perturbed(entries: Entries, draws: Draws) -> Floats:
    """score + g of each entry."""
    owners, ids = torch.from_numpy(entries.rows), torch.from_numpy(entries.ids)
    total: Floats = entries.values + noise_of_tokens(draws.seeds, draws.positions, owners, ids).numpy()
    return total
