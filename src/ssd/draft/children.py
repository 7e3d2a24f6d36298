"""From the draft's logits to the tokens most likely to follow, with how likely the model holds them.

The target will take argmax(z/T + g); the draft knows g as well. So children are ranked by the
draft's own z/T + g, under the request's parameters, and their probabilities are those of the
perturbed scores. Only the largest logits are looked at: what lies below may cost a guess, never
a token. Knows one batch of rows; does not know trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ssd.draft.messages import Floats, Ints
from ssd.models.head_tokens import whole_vocabulary
from ssd.sampling import PhiloxChooser, SamplingRow
from ssd.sampling.noise import gumbel_noise_ragged
from ssd.sampling.processors import edit_logits, needs_edits, scale_logits
from ssd.sampling.ratio import DraftDistribution, draft_distribution, propose, saguaro
from ssd.sampling.select import WideRow, largest_of_rows
from ssd.sampling.truncation import truncation_floor

_GREEDY_CANDIDATES = 16
"""Enough to tell the probability of the first few."""
_SAMPLED_CANDIDATES = 256
"""Noise can lift a token of low probability; from so far down it seldom does."""


@dataclass(frozen=True, slots=True)
class Children:
    tokens: Ints
    """Most likely first."""
    raws: Floats
    """Log-probabilities, by the model's own word."""


@dataclass(frozen=True, slots=True)
class DrawnChildren(Children):
    drawn_from: DraftDistribution
    """The distribution of the first of them."""


@dataclass(frozen=True, slots=True)
class Drawing:
    seed: int
    """Of this node alone."""
    saguaro: float
    head_tokens: Tensor | None
    vocab_size: int


def likely_children(
    logits: Tensor, rows: Sequence[SamplingRow], count: int, *, head_tokens: Tensor | None = None
) -> list[Children]:
    """The `count` likeliest tokens of each row of logits, [rows, vocabulary or head_tokens]."""
    plain = [i for i, row in enumerate(rows) if row.params.greedy and not needs_edits(row)]
    others = [i for i in range(len(rows)) if i not in set(plain)]
    found: dict[int, Children] = {}
    if plain:
        chosen = logits if not others else logits[plain]
        ids, scores = largest_of_rows(chosen, min(_GREEDY_CANDIDATES, logits.shape[1]))
        ids = ids if head_tokens is None else head_tokens[ids]
        found.update(zip(plain, _ranked(ids, scores, count), strict=True))
    candidates = [_candidates(logits[i], rows[i], head_tokens) for i in others]
    noise = gumbel_noise_ragged(
        [rows[i].seed for i in others], [rows[i].position for i in others], [ids for ids, _ in candidates]
    )
    for i, (ids, scores), g in zip(others, candidates, noise, strict=True):
        perturbed = scores if rows[i].params.greedy else scores + g
        found[i] = _ranked(ids.unsqueeze(0), perturbed.unsqueeze(0), count)[0]
    return [found[i] for i in range(len(rows))]


def drawn_children(logits: Tensor, row: SamplingRow, count: int, drawing: Drawing) -> DrawnChildren:
    """For ratio acceptance: a token drawn from the draft's own distribution, then the likeliest others."""
    if drawing.head_tokens is not None:
        logits = whole_vocabulary(logits, drawing.head_tokens)
    # Before anything is drawn: what the other side does not know must not be in q.
    honest = draft_distribution(logits[: drawing.vocab_size], row)
    q = saguaro(honest, count, drawing.saguaro)
    primary = propose(q, PhiloxChooser(drawing.seed), row.position).token
    others = honest.token_ids[honest.token_ids != primary][: count - 1]
    tokens = np.concatenate(([primary], others)).astype(np.int32)
    chances = dict(zip(honest.token_ids.tolist(), honest.probabilities.tolist(), strict=True))
    raws = np.log(np.array([chances[token] for token in tokens.tolist()])).astype(np.float32)
    return DrawnChildren(tokens, raws, q)


def _candidates(logits: Tensor, row: SamplingRow, head_tokens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids and scores (z/T) of the tokens that may come out on top."""
    ids = head_tokens
    if needs_edits(row) and head_tokens is not None:
        # Parameters speak of the whole vocabulary.
        logits, ids = whole_vocabulary(logits, head_tokens), None
    temperature = 1.0 if row.params.greedy else row.params.temperature
    wide = WideRow.of(scale_logits(edit_logits(logits, row), temperature))
    wanted = _GREEDY_CANDIDATES if row.params.greedy else _SAMPLED_CANDIDATES
    places, scores = wide.largest(min(wanted, logits.shape[0]))
    if row.params.greedy:
        # The target's argmax is not truncated: what stands second is as good a guess as ever.
        return places if ids is None else ids[places], scores
    kept = int((scores >= truncation_floor(wide, row.params)).sum())
    return (places if ids is None else ids[places])[:kept], scores[:kept]


def _ranked(ids: Tensor, scores: Tensor, count: int) -> list[Children]:
    """The first of each row [R, C], with their share of the row."""
    scores, order = scores.sort(dim=1, descending=True)
    raws = (scores[:, :count] - scores.logsumexp(1, keepdim=True)).float().numpy(force=True)
    tokens = ids.gather(1, order[:, :count]).int().numpy(force=True)
    return [Children(*each) for each in zip(tokens, raws, strict=True)]
