"""One decision per row of logits: y = argmax(z/T + g(seed, position, ·)), and the argmax of z at T = 0.

z are the processed logits in float32. A row's token depends on that row alone. Knows the order of the steps;
they are in `processors`, `coupled` and `logprobs`. Processes all rows together and reads the tokens once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.sampling.coupled import decide_tokens
from ssd.sampling.draws import Draws, Truncation
from ssd.sampling.logprobs import token_logprobs
from ssd.sampling.processors import edit_rows, needs_edits
from ssd.sampling.rows import SampledToken, SamplingRow, TokenLogprobs
from ssd.sampling.seeds import seed_tensor
from ssd.sampling.select import argmax


@dataclass(frozen=True, slots=True)
class DecidedTokens:
    """Decided tokens on the logits' device, not copied to the host yet."""

    _logits: Tensor
    _rows: Sequence[SamplingRow]
    _tokens: Tensor
    _void: Tensor | None

    def read(self) -> list[SampledToken]:
        if self._void is None:
            decided = [(token, False) for token in self._tokens.tolist()]
        else:
            pairs = torch.stack((self._tokens, self._void), 1).tolist()
            decided = [(token, bool(nothing)) for token, nothing in pairs]
        logprobs = _logprobs(self._logits, self._rows, [token for token, _ in decided])
        return [SampledToken(token, logprobs.get(i), is_void) for i, (token, is_void) in enumerate(decided)]


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Decides the token of each row of logits [R, V] and copies it to the host; the logits do not change."""
    return draw(logits, rows).read() if rows else []


def draw(logits: Tensor, rows: Sequence[SamplingRow]) -> DecidedTokens:
    """Decides the token of each row of logits [R, V]."""
    if logits.ndim != 2 or len(logits) != len(rows):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for {len(rows)} rows: pass one row of logits for each"
        )
    scores, void = edit_rows(logits, rows)
    is_greedy = all(row.params.greedy for row in rows)
    tokens = argmax(scores) if is_greedy else decide_tokens(scores, draws_of(rows, logits.device))
    return DecidedTokens(logits, rows, tokens, void)


def draws_of(rows: Sequence[SamplingRow], device: torch.device | str) -> Draws:
    """Seeds, positions, temperatures and truncation of the rows, as tensors."""
    return Draws(
        seed_tensor([row.seed for row in rows], device),
        torch.tensor([row.position for row in rows], device=device),
        torch.tensor([row.params.temperature for row in rows], device=device),
        Truncation.of([row.params for row in rows], device),
    )


def draws_ahead(rows: Sequence[tuple[SamplingRow, Sequence[int]]]) -> Draws:
    """For each row, the draws at the given distances after its position."""
    counts = [len(distances) for _row, distances in rows]
    return Draws(
        seed_tensor([row.seed for row, distances in rows for _ in distances], "cpu"),
        torch.tensor([row.position + distance for row, distances in rows for distance in distances]),
        torch.tensor([row.params.temperature for row, _distances in rows]).repeat_interleave(
            torch.tensor(counts)
        ),
        Truncation.of([row.params for row, distances in rows for _ in distances]),
    )


def is_plain_draw(row: SamplingRow) -> bool:
    """Whether this position and all later ones need neither edits of logits nor log-probabilities."""
    return row.params.logprobs is None and not needs_edits(row)


def _logprobs(logits: Tensor, rows: Sequence[SamplingRow], tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
    wanted = {i: row.params.logprobs for i, row in enumerate(rows) if row.params.logprobs is not None}
    return {i: token_logprobs(logits[i : i + 1], [tokens[i]], count)[0] for i, count in wanted.items()}
