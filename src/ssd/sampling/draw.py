"""The draw at T > 0: argmax over tokens of score + g, without noise for tokens that cannot win.

A score b that some token reaches with its noise bounds the rest: no token below b − NOISE_CEILING can win,
whatever its noise. Together with the truncation floor this leaves a few tokens out of a vocabulary when the
model is sure, the temperature low or the truncation tight. Where it leaves many, noise for the whole row is
cheaper. The answer is the same either way.

Knows scores and noise, not parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.sampling.noise import NOISE_CEILING, gumbel_noise, gumbel_noise_ragged
from ssd.sampling.select import WideRow, argmax

# A token costs four times as much noise on its own as within a whole row, and is seldom alone in its group.
_WORTHWHILE = 0.2
# How many groups' best tokens are tried to find the bound.
_SCOUTS = 32


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to draw from: scores [V] (logits over temperature), and the floor that truncation set."""

    scores: Tensor
    row: WideRow
    floor: float
    seed: int
    position: int


def draw_tokens(draws: Sequence[Draw]) -> list[int]:
    """The token of each row: argmax of score + g over scores ≥ floor. Ties to the lowest id; 0 if none is."""
    if not draws:
        return []
    narrow = [draw.floor > -math.inf and draw.row.reach(draw.floor) <= _WORTHWHILE for draw in draws]
    floors = [draw.floor for draw in draws]
    open_rows = [i for i, is_narrow in enumerate(narrow) if not is_narrow and _promising(draws[i])]
    for i, bound in zip(open_rows, _bounds([draws[i] for i in open_rows]), strict=True):
        floors[i] = max(floors[i], bound)
        narrow[i] = draws[i].row.reach(floors[i]) <= _WORTHWHILE
    few = [i for i, is_narrow in enumerate(narrow) if is_narrow]
    found = dict(zip(few, _among([draws[i] for i in few], [floors[i] for i in few]), strict=True))
    return [found[i] if i in found else _whole(draw) for i, draw in enumerate(draws)]


def _promising(draw: Draw) -> bool:
    """Whether a bound is likely to leave few tokens: it usually comes out a little over the largest score."""
    return draw.row.reach(max(draw.floor, draw.row.maximum - NOISE_CEILING)) <= 2 * _WORTHWHILE


def _bounds(draws: Sequence[Draw]) -> list[float]:
    """A floor for each row that no winner lies under, from a few likely winners."""
    scouts = []
    for draw in draws:
        peaks = draw.row.peaks
        leaders = float(peaks.topk(min(_SCOUTS, len(peaks))).values[-1])
        scouts.append(draw.row.at_least(max(draw.floor, leaders)))
    reached = [float(total.max()) if len(total) else -math.inf for total in _perturbed(draws, scouts)]
    # The last term is for the rounding of score + g to float32.
    return [best - NOISE_CEILING - abs(best) * 2.0**-22 if best > -math.inf else best for best in reached]


def _among(draws: Sequence[Draw], floors: Sequence[float]) -> list[int]:
    """Winners among the tokens that reach the floors. Ids ascend, so the first maximum has the lowest id."""
    kept = [draw.row.at_least(floor) for draw, floor in zip(draws, floors, strict=True)]
    totals = _perturbed(draws, kept)
    return [int(ids[total.argmax()]) if len(ids) else 0 for (ids, _), total in zip(kept, totals, strict=True)]


def _whole(draw: Draw) -> int:
    """The winner with noise for every token."""
    scores = draw.scores
    noise = gumbel_noise([draw.seed], [draw.position], len(scores), device=scores.device)[0]
    total = noise.add_(scores)
    if draw.floor > -math.inf:
        total = torch.where(scores >= draw.floor, total, -math.inf)
    return int(argmax(total.unsqueeze(0)))


def _perturbed(draws: Sequence[Draw], kept: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """score + g of the kept tokens of each row."""
    noise = gumbel_noise_ragged(
        [draw.seed for draw in draws], [draw.position for draw in draws], [ids for ids, _ in kept]
    )
    return [values + g for (_, values), g in zip(kept, noise, strict=True)]
