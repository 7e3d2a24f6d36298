"""From logits to the tokens most likely to follow, of all rows at once.

Guesses are ranked by z/T + g under the request's parameters, as `draft/children.py` does it row by row.
`FixedChildren` is a fixed list of operations for a device; `LooseChildren`, on a CPU, treats rows by what
they need. Rows whose children depend on their tokens (penalties, bad words) or are drawn (ratio acceptance)
are the host's. Knows no trees.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd.draft.forest.arrays import Array
from ssd.draft.forest.tables import Rows, Tables
from ssd.sampling.draws import Truncation
from ssd.sampling.noise import noise_of_tokens
from ssd.sampling.ragged import RaggedRows
from ssd.sampling.select import grouped, largest_of_rows
from ssd.sampling.truncation import candidate_floors, ragged_floors

GREEDY_CANDIDATES = 16
"""Enough to tell the probability of the first few."""
SAMPLED_CANDIDATES = 256
"""Noise can lift a token of low probability; from so far down it seldom does."""
_NEVER = -float("inf")

Told = tuple[Array, Array]
"""Tokens [W, C], and what the model said of them: −inf where there is no such child."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the rows of a step may ask for: each combination is another list of operations."""

    samples: bool = False
    truncates: bool = False


class FixedChildren:
    def __init__(
        self,
        count: int,
        needs: Needs,
        head_tokens: Tensor | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._count, self._needs, self._head_tokens = count, needs, head_tokens
        self._never = torch.full((), _NEVER, device=device)
        self._numbers = torch.arange(SAMPLED_CANDIDATES, device=device)

    def of(self, logits: Tensor, tables: Tables, rows: Rows) -> Told:
        wanted = SAMPLED_CANDIDATES if self._needs.samples else GREEDY_CANDIDATES
        ids, scores = largest_of_rows(logits, min(wanted, logits.shape[1]))
        ids = _of_head(ids, self._head_tokens)
        if self._needs.samples:
            scores = self._perturbed(ids, scores, logits, tables, rows)
        best, order = scores.topk(min(self._count, scores.shape[1]), dim=1)
        return ids.gather(1, order), best - scores.logsumexp(1, keepdim=True)

    def _perturbed(self, ids: Tensor, scores: Tensor, logits: Tensor, tables: Tables, rows: Rows) -> Tensor:
        sequence = rows.sequence
        is_greedy = (tables.kind[sequence] == 0).unsqueeze(1)
        temperatures = tables.temperature[sequence].unsqueeze(1)
        scores = scores / temperatures
        is_kept = ~is_greedy | (self._numbers[: scores.shape[1]] < GREEDY_CANDIDATES)
        if self._needs.truncates:
            floors = candidate_floors(scores, logits / temperatures, truncation_of(tables, sequence))
            is_kept = is_kept & (is_greedy | (scores >= floors.unsqueeze(1)))
        noisy = scores + _noise(ids, tables.seed[sequence], rows.position + 1)
        return torch.where(is_kept, torch.where(is_greedy, scores, noisy), self._never)


class LooseChildren:
    """The tables are numpy's; the logits, on whatever device, those of the rows that attach."""

    def __init__(self, count: int, head_tokens: Tensor | None = None) -> None:
        self._count = count
        self._head_tokens = None if head_tokens is None else head_tokens.cpu()

    def of(self, logits: Tensor, tables: Tables, rows: Rows) -> Told:
        sequence, attaching = rows.sequence, np.flatnonzero(rows.attaches)
        kinds = np.where(tables.is_given[sequence], -1, tables.kind[sequence])[attaching]
        if not kinds.any() and len(kinds) == len(sequence):
            return self._padded(*self._greedy(logits))
        tokens = np.zeros((len(sequence), self._count), np.int64)
        raws = np.full((len(sequence), self._count), _NEVER, np.float32)
        for kind in (0, 1):
            chosen = np.flatnonzero(kinds == kind)
            if len(chosen):
                mine = logits if len(chosen) == len(kinds) else logits[torch.from_numpy(chosen)]
                places = attaching[chosen]
                told = self._coupled(mine, tables, rows, places) if kind else self._greedy(mine)
                tokens[places], raws[places] = self._padded(*told)
        return tokens, raws

    def _greedy(self, logits: Tensor) -> Told:
        ids, scores = (
            each.cpu() for each in largest_of_rows(logits, min(GREEDY_CANDIDATES, logits.shape[1]))
        )
        ids = ids[:, : self._count]
        tokens = _of_head(ids, self._head_tokens).numpy()
        # The largest comes first; where it is −inf there are no children.
        with np.errstate(invalid="ignore"):
            least = scores.numpy() - scores.numpy()[:, :1]
            raws = least[:, : self._count] - np.log(np.exp(least).sum(1, keepdims=True))
        return tokens, raws

    def _coupled(self, logits: Tensor, tables: Tables, rows: Rows, chosen: Array) -> Told:
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
        noisy = scores + _noise(
            ids, torch.from_numpy(tables.seed[sequence]), torch.from_numpy(rows.position[chosen] + 1)
        )
        if cuts.any():
            groups = grouped(logits)
            wide = RaggedRows(groups, groups.amax(-1), np.arange(len(chosen)), temperatures)
            floors = torch.from_numpy(ragged_floors(wide, truncation_of(tables, sequence)))
            noisy.masked_fill_(scores < floors.unsqueeze(1), _NEVER)
        best, order = noisy.topk(min(self._count, noisy.shape[1]), dim=1)
        raws = best - noisy.logsumexp(1, keepdim=True)
        return ids.gather(1, order).numpy(), raws.numpy()

    def _padded(self, tokens: Array, raws: Array) -> Told:
        """Where the vocabulary is smaller than a family."""
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
    """Tokens of columns. Where almost all is forbidden, columns behind the last are among the largest."""
    return columns if head_tokens is None else head_tokens[columns.clamp(max=len(head_tokens) - 1)]


def _noise(ids: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Of each token [W, N]."""
    owners = torch.arange(len(ids), device=ids.device).unsqueeze(1).expand_as(ids).reshape(-1)
    return noise_of_tokens(seeds, positions, owners, ids.reshape(-1)).view(ids.shape)
