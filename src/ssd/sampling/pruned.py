"""The coupled decision on a CPU: computes noise, which is slow there, only for tokens that can win.

If the score of some token plus its noise is b, no token whose score is below b − NOISE_CEILING can win.
Together with the floor of truncation this leaves few tokens if the model is certain, the temperature low or
the truncation tight. If it leaves many, computing noise for the whole row is faster. The result is the same
as that of `whole.py`. Knows scores and noise. Does not know requests.
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

# Largest share of tokens to compute one by one: noise of single tokens takes four times as long as in a row.
_WORTHWHILE = 0.15
# If at most this share of the groups is left, looking for a better bound costs more than it saves.
_CLEAR = 0.1
# Number of groups whose best tokens are tried to find a bound.
_NUM_TRIED_GROUPS = 32
# Rows that need noise for all tokens are decided in pieces of this many scores, which fit a core's cache.
_WHOLE_ENTRIES = 1 << 16


def decide_pruned(logits: Tensor, draws: Draws) -> Tensor:
    """The token [R] of each row of logits [R, V]. The lowest id wins a tie; 0 if all logits are −inf."""
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
    """Samples a token from each row; `numbers` are the rows' indices in the logits."""
    floors = np.full(len(rows), -np.inf, np.float32)
    if draws.truncation is not None:
        floors = ragged_floors(rows, draws.truncation)
    few, bounds = _few(rows, floors, draws)
    tokens = np.zeros(len(rows), np.int64)
    if few.any():
        _note_winners(tokens, rows.at_least(np.where(few, bounds, ABSENT)), draws)
    result = torch.from_numpy(tokens)
    many, step = torch.from_numpy(np.flatnonzero(~few)), max(1, _WHOLE_ENTRIES // rows.width)
    for start in range(0, len(many), step):
        piece = many[start : start + step]
        piece_draws = draws.at(piece)
        piece_floors = None if piece_draws.truncation is None else torch.from_numpy(floors)[piece]
        scores = scaled(_rows_at(logits, numbers[piece]), piece_draws.temperatures)
        result[piece] = draw_whole(scores, piece_draws, piece_floors)
    return result


def _rows_at(logits: Tensor, numbers: Tensor) -> Tensor:
    """Rows with these numbers, ascending; a view if they are adjacent."""
    first, last = numbers.numpy()[[0, -1]].tolist()
    return logits[first : last + 1] if last - first == len(numbers) - 1 else logits[numbers]


def _few(rows: BatchedScores, floors: Floats, draws: Draws) -> tuple[Flags, Floats]:
    """Which rows have few tokens that can win, and for these rows a floor that the winner reaches."""
    # Rows with NaN or +inf get noise for all their tokens.
    is_sound = rows.maxima < np.inf
    # A first bound: even with the smallest noise, the token with the largest score reaches this total.
    bounds = np.maximum(floors, _below(rows.maxima + np.float32(NOISE_BOTTOM)))
    clear = is_sound & (rows.reach(bounds) <= _CLEAR)
    # Score + noise of the best token usually exceeds the largest score a little: expect about this bound.
    hoped = np.maximum(bounds, rows.maxima - np.float32(NOISE_CEILING))
    open_rows = is_sound & ~clear
    open_rows &= rows.estimated_share(hoped, open_rows) <= 2 * _WORTHWHILE
    if open_rows.any():
        bounds = np.maximum(bounds, _bounds_of_likely(rows, bounds, open_rows, draws))
        open_rows &= rows.estimated_share(bounds, open_rows) <= _WORTHWHILE
    return clear | open_rows, bounds


def _bounds_of_likely(rows: BatchedScores, floors: Floats, wanted: Flags, draws: Draws) -> Floats:
    """A floor for each wanted row, from the noise of a few likely winners; −inf for other rows."""
    num_groups = min(_NUM_TRIED_GROUPS, rows.peaks.shape[1])
    leaders = rows.kth_peaks(np.full(len(rows), num_groups))
    likely = rows.at_least(np.where(wanted, np.maximum(floors, leaders), ABSENT))
    bounds = np.full(len(rows), -np.inf, np.float32)
    if len(likely):
        starts = likely.starts
        bounds[likely.rows[starts]] = _below(np.maximum.reduceat(_perturbed(likely, draws), starts))
    return bounds


def _below(reached: Floats) -> Floats:
    """The floor below which no token wins or ties against a token that reaches this score with its noise.

    The last term allows for rounding to float32, of the floor and of score + g.
    """
    best = reached.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (best - NOISE_CEILING - np.abs(best) * 2.0**-21).astype(np.float32)


def _note_winners(tokens: Ints, entries: Entries, draws: Draws) -> None:
    """Writes to `tokens`, for each row with entries, the id of the entry with the largest score + g."""
    if not len(entries):
        return
    totals, starts = _perturbed(entries, draws), entries.starts
    largest = np.zeros(len(tokens), np.float32)
    largest[entries.rows[starts]] = np.maximum.reduceat(totals, starts)
    winners = np.flatnonzero(totals == largest[entries.rows])
    # Backwards, so that the first of equal entries, which has the lowest id, is written last.
    tokens[entries.rows[winners[::-1]]] = entries.ids[winners[::-1]]


def _perturbed(entries: Entries, draws: Draws) -> Floats:
    """score + g of each entry."""
    owners, ids = torch.from_numpy(entries.rows), torch.from_numpy(entries.ids)
    total: Floats = entries.values + noise_of_tokens(draws.seeds, draws.positions, owners, ids).numpy()
    return total
