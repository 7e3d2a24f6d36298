"""Chooses the tokens that are most likely to follow, from the draft's logits.

The target takes argmax(z/T + g), and the draft knows the noise g as well. So children are ranked by the
draft's own z/T + g under the request's parameters, and their probabilities are those of these perturbed
scores. Only the largest logits are considered: a token below them may cost a hit, never a wrong token.

`FixedChildren` is a fixed list of operations for a GPU. `LooseChildren`, on a CPU, does for each row what it
needs. `likely_children` works row by row. Edits that depend on a row's tokens (penalties, bad words) come
before (server/host_edits.py). Does not know trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ssd.draft.protocol.messages import Floats, Ints
from ssd.draft.tree.arrays import Array
from ssd.draft.tree.tables import Tables, TreeRows
from ssd.models.head_tokens import whole_vocabulary
from ssd.sampling import SamplingRow
from ssd.sampling.draws import Truncation
from ssd.sampling.murmur import murmur_noise
from ssd.sampling.noise import gumbel_noise_ragged, noise_of_tokens
from ssd.sampling.processors import edit_logits, needs_edits, scale_logits
from ssd.sampling.ragged import BatchedScores
from ssd.sampling.select import GroupedScores, grouped, largest_of_rows
from ssd.sampling.truncation import candidate_floors, ragged_floors, truncation_floor

GREEDY_CANDIDATES = 16
"""Largest logits that are normalised: enough for the probabilities of the first few."""
SAMPLED_CANDIDATES = 256
"""Largest logits that get noise. Noise seldom lifts a token from further down to the top."""
_NEVER = -float("inf")

ChosenChildren = tuple[Array, Array]
"""Tokens [W, C] and their log-probabilities, not calibrated; −inf: no such child."""


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """What the rows of a step may need. Each combination is another list of operations."""

    samples: bool = False
    truncates: bool = False


class ChildChooser(Protocol):
    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren: ...


class FixedChildren:
    def __init__(
        self,
        count: int,
        needs: SamplingNeeds,
        head_tokens: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._count, self._needs, self._head_tokens = count, needs, head_tokens
        self._never = torch.full((), _NEVER, device=device)
        self._numbers = torch.arange(SAMPLED_CANDIDATES, device=device)

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        wanted = SAMPLED_CANDIDATES if self._needs.samples else GREEDY_CANDIDATES
        ids, scores = largest_of_rows(logits, min(wanted, logits.shape[1]))
        ids = _of_head(ids, self._head_tokens)
        if self._needs.samples:
            scores = self._perturbed(ids, scores, logits, tables, rows)
        best, order = scores.topk(min(self._count, scores.shape[1]), dim=1)
        return ids.gather(1, order), best - scores.logsumexp(1, keepdim=True)

    def _perturbed(
        self, ids: Tensor, scores: Tensor, logits: Tensor, tables: Tables, rows: TreeRows
    ) -> Tensor:
        sequence = rows.sequence
        is_greedy = (tables.kind[sequence] == 0).unsqueeze(1)
        temperatures = tables.temperature[sequence].unsqueeze(1)
        scores = scores / temperatures
        is_kept = ~is_greedy | (self._numbers[: scores.shape[1]] < GREEDY_CANDIDATES)
        if self._needs.truncates:
            floors = candidate_floors(scores, logits / temperatures, truncation_of(tables, sequence))
            is_kept = is_kept & (is_greedy | (scores >= floors.unsqueeze(1)))
        is_murmur = tables.is_murmur[sequence].unsqueeze(1)
        seeds, positions = tables.seed[sequence], rows.position + 1
        murmur = murmur_noise(seeds.unsqueeze(1), positions.unsqueeze(1), ids)
        noisy = scores + torch.where(is_murmur, murmur, _philox_noise(ids, seeds, positions))
        return torch.where(is_kept, torch.where(is_greedy, scores, noisy), self._never)


class LooseChildren:
    """For numpy tables. The logits, on any device, are those of the rows that attach."""

    def __init__(self, count: int, head_tokens: Tensor | None = None) -> None:
        self._count = count
        self._head_tokens = None if head_tokens is None else head_tokens.cpu()

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        sequence, attaching = rows.sequence, np.flatnonzero(rows.attaches)
        kinds = tables.kind[sequence][attaching]
        if not kinds.any() and len(kinds) == len(sequence):
            return self._padded(*self._greedy(logits))
        tokens = np.zeros((len(sequence), self._count), np.int64)
        raws = np.full((len(sequence), self._count), _NEVER, np.float32)
        for kind in (0, 1):
            chosen = np.flatnonzero(kinds == kind)
            if len(chosen):
                mine = logits if len(chosen) == len(kinds) else logits[torch.from_numpy(chosen)]
                places = attaching[chosen]
                found = self._coupled(mine, tables, rows, places) if kind else self._greedy(mine)
                tokens[places], raws[places] = self._padded(*found)
        return tokens, raws

    def _greedy(self, logits: Tensor) -> ChosenChildren:
        ids, scores = (
            each.cpu() for each in largest_of_rows(logits, min(GREEDY_CANDIDATES, logits.shape[1]))
        )
        ids = ids[:, : self._count]
        tokens = _of_head(ids, self._head_tokens).numpy()
        # The largest comes first. If it is −inf, there are no children.
        with np.errstate(invalid="ignore"):
            least = scores.numpy() - scores.numpy()[:, :1]
            raws = least[:, : self._count] - np.log(np.exp(least).sum(1, keepdims=True))
        return tokens, raws

    def _coupled(self, logits: Tensor, tables: Tables, rows: TreeRows, chosen: Array) -> ChosenChildren:
        logits, sequence = logits.cpu(), rows.sequence[chosen]
        temperatures = tables.temperature[sequence]
        ids, values = largest_of_rows(logits, min(SAMPLED_CANDIDATES, logits.shape[1]))
        ids = _of_head(ids, self._head_tokens)
        scores = values / torch.from_numpy(temperatures).unsqueeze(1)
        cuts = (
            (tables.top_k[sequence] > 0)
            | (tables.top_p[sequence] < 1)
            | (tables.log_min_p[sequence] > _NEVER)
        )
        noisy = scores + _noise(ids, tables, sequence, torch.from_numpy(rows.position[chosen] + 1))
        if cuts.any():
            groups = grouped(logits)
            wide = BatchedScores(groups, groups.amax(-1), np.arange(len(chosen)), temperatures)
            floors = torch.from_numpy(ragged_floors(wide, truncation_of(tables, sequence)))
            noisy.masked_fill_(scores < floors.unsqueeze(1), _NEVER)
        best, order = noisy.topk(min(self._count, noisy.shape[1]), dim=1)
        raws = best - noisy.logsumexp(1, keepdim=True)
        return ids.gather(1, order).numpy(), raws.numpy()

    def _padded(self, tokens: Array, raws: Array) -> ChosenChildren:
        """Pads families if the vocabulary is smaller than a family."""
        lacking = self._count - tokens.shape[1]
        if not lacking:
            return tokens, raws
        return (
            np.pad(tokens, ((0, 0), (0, lacking))),
            np.pad(raws, ((0, 0), (0, lacking)), constant_values=_NEVER),
        )


def truncation_of(tables: Tables, sequence: Array) -> Truncation:
    columns = (each[sequence] for each in (tables.log_min_p, tables.top_k, tables.top_p))
    return Truncation(*(torch.as_tensor(each) for each in columns))


def _of_head(columns: Tensor, head_tokens: Tensor | None) -> Tensor:
    """Tokens of columns. Clamps padding columns, which can be chosen if nearly all tokens are forbidden."""
    return columns if head_tokens is None else head_tokens[columns.clamp(max=len(head_tokens) - 1)]


def _noise(ids: Tensor, tables: Tables, sequence: Array, positions: Tensor) -> Tensor:
    """The noise of each token [W, N], for numpy tables: computes only what the rows need."""
    seeds, is_murmur = torch.from_numpy(tables.seed[sequence]), tables.is_murmur[sequence]
    if not is_murmur.any():
        return _philox_noise(ids, seeds, positions)
    murmur = murmur_noise(seeds.unsqueeze(1), positions.unsqueeze(1), ids)
    if is_murmur.all():
        return murmur
    is_theirs = torch.from_numpy(is_murmur).unsqueeze(1)
    return torch.where(is_theirs, murmur, _philox_noise(ids, seeds, positions))


def _philox_noise(ids: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    owners = torch.arange(len(ids), device=ids.device).unsqueeze(1).expand_as(ids).reshape(-1)
    return noise_of_tokens(seeds, positions, owners, ids.reshape(-1)).view(ids.shape)


@dataclass(frozen=True, slots=True)
class Children:
    """The children of one row."""

    tokens: Ints
    """Most likely first."""
    raws: Floats
    """Log-probabilities, not calibrated."""


def likely_children(
    logits: Tensor, rows: Sequence[SamplingRow], count: int, *, head_tokens: Tensor | None = None
) -> list[Children]:
    """The `count` most likely tokens of each row of logits [rows, vocabulary or head_tokens]."""
    plain = [i for i, row in enumerate(rows) if row.params.greedy and not needs_edits(row)]
    others = [i for i in range(len(rows)) if i not in set(plain)]
    found: dict[int, Children] = {}
    if plain:
        chosen = logits if not others else logits[plain]
        ids, scores = largest_of_rows(chosen, min(GREEDY_CANDIDATES, logits.shape[1]))
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


def _candidates(logits: Tensor, row: SamplingRow, head_tokens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids and scores (z/T) of the tokens that may become children."""
    ids = head_tokens
    if needs_edits(row) and head_tokens is not None:
        # Parameters refer to the whole vocabulary.
        logits, ids = whole_vocabulary(logits, head_tokens), None
    temperature = 1.0 if row.params.greedy else row.params.temperature
    wide = GroupedScores.of(scale_logits(edit_logits(logits, row), temperature))
    wanted = GREEDY_CANDIDATES if row.params.greedy else SAMPLED_CANDIDATES
    places, scores = wide.largest(min(wanted, logits.shape[0]))
    if row.params.greedy:
        # The target's argmax is not truncated, so neither are greedy guesses.
        return places if ids is None else ids[places], scores
    kept = int((scores >= truncation_floor(wide, row.params)).sum())
    return (places if ids is None else ids[places])[:kept], scores[:kept]


def _ranked(ids: Tensor, scores: Tensor, count: int) -> list[Children]:
    """The first `count` tokens of each row, with their log-probabilities."""
    scores, order = scores.sort(dim=1, descending=True)
    raws = (scores[:, :count] - scores.logsumexp(1, keepdim=True)).float().numpy(force=True)
    tokens = ids.gather(1, order[:, :count]).int().numpy(force=True)
    return [Children(*each) for each in zip(tokens, raws, strict=True)]
