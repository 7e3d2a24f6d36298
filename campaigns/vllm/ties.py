"""The scores behind each token, so that two texts that differ can be told from two scores that were equal.

A log of the best scores of every decision, by seed and position, taken where the worker decides; and what
rounding moves a score by, found without a draft: the same texts one at a time and all at once. Two scores
whose gap is at most twice that may change places, others may not.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ssd.sampling.draws import Draws
from ssd.sampling.noise import noise_of_rows
from ssd.sampling.truncation import whole_floors
from ssd.sampling.whole import scaled

NUM_BEST = 16
_MASK = 2**64 - 1

Key = tuple[int, int]
"""The seed, and the position that is decided."""


def scores_of(logits: Tensor, draws: Draws) -> Tensor:
    """What the decision takes the greatest of."""
    is_greedy = draws.temperatures == 0.0
    scores = scaled(logits, torch.where(is_greedy, 1.0, draws.temperatures))
    total = noise_of_rows(draws.seeds, draws.positions, scores.shape[1]).add_(scores)
    if draws.truncation is not None:
        floors = whole_floors(scores, draws.truncation)
        total.masked_fill_(scores < floors.unsqueeze(1), -torch.inf)
    return torch.where(is_greedy.unsqueeze(1), scores, total)


class ScoreLog:
    """A position that is decided again, since what was guessed before it was wrong, counts as it was last."""

    def __init__(self) -> None:
        self._best: dict[Key, dict[int, float]] = {}

    def note(self, logits: Tensor, draws: Draws) -> None:
        best = scores_of(logits, draws).topk(NUM_BEST)
        rows = zip(draws.seeds.tolist(), draws.positions.tolist(), strict=True)
        for key, values, tokens in zip(rows, best.values.tolist(), best.indices.tolist(), strict=True):
            self._best[key[0] & _MASK, key[1]] = dict(zip(tokens, values, strict=True))

    def gap(self, key: Key) -> float:
        """Between the two best."""
        first, second = sorted(self._best[key].values())[-2:][::-1]
        return first - second

    def moved(self, other: "ScoreLog", keys: Sequence[Key]) -> float:
        """The most that the score of any good token differs by between two logs."""
        pairs = [(self._best[key], other._best[key]) for key in keys]
        return max(abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys())


@contextmanager
def logged_scores() -> Iterator[ScoreLog]:
    """Of everything that is decided meanwhile by workers of this process."""
    from ssd.integrations.vllm.sampler import CoupledSampler

    log, decide = ScoreLog(), CoupledSampler.decide

    def noting(self: CoupledSampler, logits: Tensor, metadata: Any, draws: Draws) -> Tensor:
        log.note(logits, draws)
        return decide(self, logits, metadata, draws)

    with patch.object(CoupledSampler, "decide", noting):
        yield log


def common_keys(
    seeds: Sequence[int],
    lengths: Sequence[int],
    texts: Sequence[Sequence[int]],
    others: Sequence[Sequence[int]],
) -> list[Key]:
    """The decisions that two runs made after the same tokens."""
    return [
        (seed, length + place)
        for seed, length, text, other in zip(seeds, lengths, texts, others, strict=True)
        for place in range(min(first_difference(text, other) + 1, len(text)))
    ]


def first_difference(text: Sequence[int], other: Sequence[int]) -> int:
    """Where they part, or their length."""
    places = (place for place, (a, b) in enumerate(zip(text, other, strict=True)) if a != b)
    return next(places, len(text))


def differences(
    log: ScoreLog,
    found: Mapping[Key, tuple[Sequence[int], Sequence[int]]],
    bound: float,
) -> list[dict[str, float]]:
    """Of each pair of texts that differ, by seed and prompt length: where, and by what gap."""
    shown = []
    for (seed, length), (text, other) in found.items():
        place = first_difference(text, other)
        if place < len(text):
            gap = log.gap((seed, length + place))
            shown.append({"place": place, "gap": round(gap, 4), "bound": round(bound, 4)})
    return shown
