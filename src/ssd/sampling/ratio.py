"""Ratio acceptance: accept a drafted token with probability min(1, p/q), else sample from max(p − q, 0).

    p   the target's distribution: softmax of the processed logits, in float64; 0 for truncated tokens
    q   the distribution that the drafted token was sampled from

The result is distributed as p for any q, provided that the drafted token was sampled from this q and that its
value did not influence whether it is verified. A token that was guessed without sampling has a q that is 1
for this token; then the second condition is not needed.

A draft sends q as sparse float32 weights, which do not quite sum to 1. So q is *defined* as the weights
divided by their float64 sum, for sampling and for the ratio. Using the weights themselves as probabilities
would bias tokens by some 1e-8.

Knows distributions and choices. Does not know models, rounds or drafts.
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
            raise ValueError("weights of a draft distribution are positive: leave out tokens without weight")

    @property
    def probabilities(self) -> Probabilities:
        """q itself, for sampling and for the ratio."""
        weights = self.weights.astype(np.float64)
        normal: Probabilities = weights / weights.sum()
        return normal


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A drafted token and the distribution that it was sampled from."""

    token: int
    distribution: DraftDistribution

    def __post_init__(self) -> None:
        if self.token not in self.distribution.token_ids:
            raise ValueError(f"token {self.token} is not in the distribution that it should come from")

    @property
    def probability(self) -> float:
        """q of the token."""
        q = self.distribution
        return float(q.probabilities[q.token_ids == self.token][0])


def certain(token: int) -> Proposal:
    """A token that was guessed without sampling: its q is 1."""
    return Proposal(token, _distribution([token], [1.0]))


def draft_distribution(
    logits: Tensor, row: SamplingRow, max_tokens: int = MAX_DRAFT_TOKENS
) -> DraftDistribution:
    """q from a draft's logits [V], processed like the target's, and cut to the likeliest tokens."""
    scores = process_logits(logits, row)
    wide = GroupedScores.of(scores)
    if row.params.greedy or not math.isfinite(wide.maximum):
        return _distribution([int(argmax(scores.unsqueeze(0)))], [1.0])
    ids, values = wide.largest(max_tokens)
    weights = (values.double() - wide.maximum).exp()
    return _distribution(ids.cpu().numpy(), (weights / weights.sum()).cpu().numpy())


def saguaro(q: DraftDistribution, fan_out: int, factor: float) -> DraftDistribution:
    """q with the weights of its `fan_out` likeliest tokens multiplied by `factor` ≤ 1.

    The target then rejects more often, but its replacement is more often one of these tokens, for which
    branches are prepared. The draft samples from this distribution and sends it.
    """
    if factor == 1.0 or fan_out >= len(q.weights):
        return q
    weights = q.probabilities
    weights[:fan_out] *= factor
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    return _distribution(q.token_ids[order], weights[order])


def propose(q: DraftDistribution, chooser: Chooser, position: int) -> Proposal:
    """Samples the token at a position from q."""
    return Proposal(int(q.token_ids[chooser.choose(q.probabilities, Stream.DRAFT, position)]), q)


def target_probabilities(logits: Tensor, row: SamplingRow) -> Probabilities:
    """p from the target's logits [V]; 1 for the only possible token if the row is greedy or all −inf."""
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
    """The token at a position, distributed as p: the drafted one if it is accepted, else a residual one.

    A rejected token has no residual weight: if the result equals the drafted token, it was accepted.
    """
    if proposal is None:
        return chooser.choose(p, Stream.RESIDUAL, position)
    accepted = min(1.0, p[proposal.token] / proposal.probability)
    if chooser.choose((accepted, 1.0 - accepted), Stream.ACCEPTANCE, position) == 0:
        return proposal.token
    return chooser.choose(residual(p, proposal.distribution), Stream.RESIDUAL, position)


def residual(p: Probabilities, q: DraftDistribution) -> Probabilities:
    """max(p − q, 0), as weights."""
    rest = p.copy()
    rest[q.token_ids] = np.maximum(p[q.token_ids] - q.probabilities, 0.0)
    # If p = q all weights are 0; then tokens are rejected only by a rounding error of 1e-16.
    return rest if rest.any() else p


def _distribution(ids: object, weights: object) -> DraftDistribution:
    """From ids and weights of any type; drops weights that are 0 in float32."""
    narrow = np.asarray(weights, np.float32)
    is_positive = narrow > 0
    return DraftDistribution(np.asarray(ids, np.int32)[is_positive], narrow[is_positive])
