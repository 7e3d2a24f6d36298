"""A text as the round model sees it: at each place, what a draft would offer and what the target takes.

A token is named by its rank among the draft's guesses for its place, so a text needs no vocabulary: 0 is the
draft's first guess, 1 its second, MISSED one it did not offer. Knows chances; no times, no settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MISSED = -1
"""The rank of a token that was not among the guesses."""
MOST_CHILDREN = 8
_SPREAD = 1.0
"""How a draft's confidence varies, as the sum of a beta distribution's parameters: mostly sure."""
_DECAY = 0.5
"""How much of a chance the next guess has, relative to the one before it."""

Chances = NDArray[np.float64]
Ranks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Text:
    chances: Chances
    """By place and rank: how likely the target takes that guess, as a calibrated draft knows it."""
    ranks: Ranks
    """By place: which guess the target takes, or MISSED."""
    runs: Ranks
    """By place: how many of the tokens after it a look at the earlier text gets right."""

    def __post_init__(self) -> None:
        if not len(self.chances) == len(self.ranks) == len(self.runs):
            raise ValueError("chances, ranks and runs must cover the same places")

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def acceptance(self) -> float:
        """How often the first guess is right."""
        return float((self.ranks == 0).mean())

    @property
    def coverage(self) -> float:
        """How often one of the other guesses is right where the first is wrong."""
        wrong = self.ranks != 0
        return float((self.ranks[wrong] > 0).mean()) if wrong.any() else 1.0

    def tokens_a_round(self, lookahead: int) -> float:
        """With a draft that has a whole speculation ready whenever a round begins."""
        return tokens_a_round((self.ranks == 0).tolist(), lookahead)


def tokens_a_round(agrees: Sequence[bool], lookahead: int) -> float:
    """E∞: tokens of a verification with a draft that always has a whole speculation ready.

    `agrees`: of each token of a text, whether it is the draft's first guess.
    """
    place, rounds = 0, 0
    while place < len(agrees):
        run = 0
        while run < lookahead and place + run < len(agrees) and agrees[place + run]:
            run += 1
        place += run + 1
        rounds += 1
    return len(agrees) / rounds


def drawn_text(
    acceptance: float,
    coverage: float,
    *,
    length: int,
    seed: int,
    repeats: float = 0.0,
    run_length: int = 3,
) -> Text:
    """A text of these rates; at a share `repeats` of places the earlier text knows what follows.

    The rates are met as exactly as the length allows, so that short texts are not lucky or unlucky.
    """
    _check_rates(acceptance, coverage)
    draw = np.random.default_rng(seed)
    ranks = _drawn_ranks(acceptance, coverage, length, draw)
    runs = np.where(draw.random(length) < repeats, run_length, 0)
    return Text(_chances(ranks, acceptance, coverage, draw), ranks, runs)


def replayed_text(ranks: Sequence[int], *, seed: int, runs: Sequence[int] | None = None) -> Text:
    """A text of which it is known which guess was right at each place; confidences are drawn to fit."""
    known = np.asarray(ranks, dtype=np.int64)
    wrong = known != 0
    # Of wrong first guesses, how many the next three would have caught; half, where none was wrong.
    coverage = float(((known >= 1) & (known <= 3)).sum() + 0.5) / float(wrong.sum() + 1)
    repeats = np.zeros(len(known), dtype=np.int64) if runs is None else np.asarray(runs, dtype=np.int64)
    draw = np.random.default_rng(seed)
    return Text(_chances(known, float((~wrong).mean()), coverage, draw), known, repeats)


def agreeing_text(agrees: Sequence[bool], runs: Sequence[int], *, coverage: float, seed: int) -> Text:
    """A text of which it is known where the first guess was right; which other was, elsewhere, is drawn."""
    _check_rates(0.0, coverage)
    ranks = np.where(np.asarray(agrees, dtype=bool), 0, MISSED)
    wrong = ranks == MISSED
    ranks[wrong] = _drawn_ranks(0.0, coverage, int(wrong.sum()), np.random.default_rng(seed))
    return replayed_text(ranks.tolist(), seed=seed, runs=runs)


def _drawn_ranks(acceptance: float, coverage: float, length: int, draw: np.random.Generator) -> Ranks:
    shares = [acceptance, *((1 - acceptance) * coverage * _others())]
    bounds = np.round(np.minimum(np.cumsum(shares), 1.0) * length)
    ranks = np.searchsorted(bounds, np.arange(length), side="right")
    ranks = np.where(ranks < MOST_CHILDREN, ranks, MISSED)
    draw.shuffle(ranks)
    return ranks


def _chances(ranks: Ranks, acceptance: float, coverage: float, draw: np.random.Generator) -> Chances:
    """What a calibrated draft believed at each place, before its guess turned out right or wrong."""
    acceptance = min(max(acceptance, 0.01), 0.99)
    right = ranks == 0
    firsts = draw.beta(_SPREAD * acceptance + right, _SPREAD * (1 - acceptance) + ~right)
    return np.column_stack([firsts, (1 - firsts)[:, None] * np.minimum(coverage * _others(), 1.0)])


def _others() -> Chances:
    """How guesses after the first share what it leaves, relative to the coverage of three of them."""
    weights = _DECAY ** np.arange(MOST_CHILDREN - 1)
    return np.asarray(weights / weights[:3].sum())


def _check_rates(acceptance: float, coverage: float) -> None:
    for name, rate in (("acceptance", acceptance), ("coverage", coverage)):
        if not 0 <= rate <= 1:
            raise ValueError(f"{name}={rate}: a share, from 0 to 1")
