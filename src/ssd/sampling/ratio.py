"""Ratio acceptance: keep a drafted token with probability min(1, p/q), or else draw from max(p − q, 0).

    p   the target's distribution: softmax of the processed logits, in float64; what truncation drops has 0
    q   the distribution that the drafted token was drawn from

Whatever q is, the token that comes out is distributed as p, provided that the drafted token was drawn from
this very q and that nobody looked at it before deciding to have it checked. A token that was guessed rather
than drawn counts as drawn from a q that is certain of it, and then even the second condition falls away.

q is sparse and made of float32 weights, those that a draft sends. They do not quite sum to 1, so q is
*defined* as the weights over their float64 sum, for the draw and for the ratio alike. Taking the weights
themselves for probabilities would bias tokens by some 1e-8.

Knows distributions and choices. Does not know models, rounds, or who drafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ssd.sampling.chooser import Chooser, Stream
from ssd.sampling.processors import process_logits
from ssd.sampling.rows import SamplingRow
from ssd.sampling.select import GroupedScores, argmax

MAX_DRAFT_TOKENS = 64

Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DraftDistribution:
    """A sparse q: token ids with float32 weights, largest first."""

    token_ids: NDArray[np.int32]
    weights: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.token_ids.dtype != np.int32 or self.weights.dtype != np.float32:
            raise ValueError("a draft distribution is made of int32 token ids and float32 weights")
        if self.token_ids.shape != self.weights.shape or self.token_ids.ndim != 1 or not len(self.token_ids):
            raise ValueError("a draft distribution needs one weight for each token id, and at least one")
        if len(set(self.token_ids.tolist())) < len(self.token_ids) or self.token_ids.min() < 0:
            raise ValueError("a draft distribution names each token once, counting from 0")
        if not (np.isfinite(self.weights).all() and (self.weights > 0).all()):
            raise ValueError("the weights of a draft distribution are positive: leave out what has none")

    @property
    def probabilities(self) -> Probabilities:
        """q itself, for the draw and for the ratio."""
        weights = self.weights.astype(np.float64)
        normal: Probabilities = weights / weights.sum()
        return normal


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A drafted token and the distribution it was drawn from."""

    token: int
    distribution: DraftDistribution

    def __post_init__(self) -> None:
        if self.token not in self.distribution.token_ids:
            raise ValueError(f"token {self.token} was not drawn from a distribution that does not hold it")

    @property
    def probability(self) -> float:
        """q of the token."""
        q = self.distribution
        return float(q.probabilities[q.token_ids == self.token][0])


def certain(token: int) -> Proposal:
    """A guess without a q."""
    return Proposal(token, _distribution([token], [1.0]))


def draft_distribution(
    logits: Tensor, row: SamplingRow, max_tokens: int = MAX_DRAFT_TOKENS
) -> DraftDistribution:
    """q from a draft's logits [V]: processed as the target's are, and cut to the likeliest tokens."""
    scores = process_logits(logits, row)
    wide = GroupedScores.of(scores)
    if row.params.greedy or not math.isfinite(wide.maximum):
        return _distribution([int(argmax(scores.unsqueeze(0)))], [1.0])
    ids, values = wide.largest(max_tokens)
    weights = (values.double() - wide.maximum).exp()
    return _distribution(ids.cpu().numpy(), (weights / weights.sum()).cpu().numpy())


def saguaro(q: DraftDistribution, fan_out: int, factor: float) -> DraftDistribution:
    """q with its `fan_out` likeliest tokens made `factor` times as heavy as they were, factor ≤ 1.

    The target then rejects more often, but onto these tokens, for which branches are prepared. What is drawn
    from and sent is this distribution.
    """
    if factor == 1.0 or fan_out >= len(q.weights):
        return q
    weights = q.probabilities
    weights[:fan_out] *= factor
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    return _distribution(q.token_ids[order], weights[order])


def propose(q: DraftDistribution, chooser: Chooser, position: int) -> Proposal:
    """Draws the token at a position from q."""
    return Proposal(int(q.token_ids[chooser.choose(q.probabilities, Stream.DRAFT, position)]), q)


def target_probabilities(logits: Tensor, row: SamplingRow) -> Probabilities:
    """p from the target's logits [V]. Where the sampler's answer is fixed, so is this: all on its token."""
    scores = process_logits(logits, row)
    peak = float(scores.max())
    if row.params.greedy or not math.isfinite(peak):
        only = np.zeros(len(scores))
        only[int(argmax(scores.unsqueeze(0)))] = 1.0
        return only
    weights = scores.double().sub_(peak).exp_()
    probabilities: Probabilities = (weights / weights.sum()).cpu().numpy()
    return probabilities


def decide(p: Probabilities, proposal: Proposal | None, chooser: Chooser, position: int) -> int:
    """The token at a position: the drafted one if it is accepted, otherwise the target's. Its law is p.

    A rejected token has no residual weight, so the two answers cannot be taken for one another.
    """
    if proposal is None:
        return chooser.choose(p, Stream.RESIDUAL, position)
    accepted = min(1.0, p[proposal.token] / proposal.probability)
    if chooser.choose((accepted, 1.0 - accepted), Stream.ACCEPTANCE, position) == 0:
        return proposal.token
    return chooser.choose(residual(p, proposal.distribution), Stream.RESIDUAL, position)


def residual(p: Probabilities, q: DraftDistribution) -> Probabilities:
    """What p has more than q, as weights."""
    rest = p.copy()
    rest[q.token_ids] = np.maximum(p[q.token_ids] - q.probabilities, 0.0)
    # Nothing is left where p = q, and there nothing is rejected either, but for a rounding error of 1e-16.
    return rest if rest.any() else p


def _distribution(ids: object, weights: object) -> DraftDistribution:
    """From ids and weights of any type; a weight that float32 cannot hold is left out."""
    narrow = np.asarray(weights, np.float32)
    held = narrow > 0
    return DraftDistribution(np.asarray(ids, np.int32)[held], narrow[held])
