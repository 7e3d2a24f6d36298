"""One decision per row of logits: y = argmax(z/T + g(seed, position, ·)), and the argmax of z at T = 0.

z are the processed logits in float32. The token of a row is a function of that row alone, to the bit. Knows
the order of the work; the parts are in `processors`, `coupled` and `logprobs`. All rows go together, and what
is decided is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.sampling.coupled import decide_tokens
from ssd.sampling.draws import Draws, Truncation
from ssd.sampling.logprobs import token_logprobs
from ssd.sampling.processors import edit_rows, needs_edits
from ssd.sampling.rows import SampledToken, SamplingRow, TokenLogprobs
from ssd.sampling.seeds import seed_tensor
from ssd.sampling.select import argmax


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Decide the token of each row of logits [R, V]. The logits are left as they are."""
    if logits.ndim != 2 or len(logits) != len(rows):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for {len(rows)} rows: pass one row of logits for each"
        )
    if not rows:
        return []
    scores, void = edit_rows(logits, rows)
    is_greedy = all(row.params.greedy for row in rows)
    tokens = argmax(scores) if is_greedy else decide_tokens(scores, draws_of(rows, logits.device))
    if void is None:
        decided = [(token, False) for token in tokens.tolist()]
    else:
        decided = [(token, bool(nothing)) for token, nothing in torch.stack((tokens, void), 1).tolist()]
    logprobs = _logprobs(logits, rows, [token for token, _ in decided])
    return [SampledToken(token, logprobs.get(i), is_void) for i, (token, is_void) in enumerate(decided)]


def draws_of(rows: Sequence[SamplingRow], device: torch.device | str) -> Draws:
    """What rows say of their draw, as tensors."""
    return Draws(
        seed_tensor([row.seed for row in rows], device),
        torch.tensor([row.position for row in rows], device=device),
        torch.tensor([row.params.temperature for row in rows], device=device),
        Truncation.of([row.params for row in rows], device),
    )


def is_plain(row: SamplingRow) -> bool:
    """Whether this position and all later ones are decided by the bare argmax, and nobody asks how likely."""
    params = row.params
    return params.greedy and params.logprobs is None and not needs_edits(row)


def decide_plain(logits: Tensor) -> list[int]:
    """The tokens of plain rows [R, V]: what `sample` gives, without a record for each."""
    tokens: list[int] = argmax(logits).tolist()
    return tokens


def _logprobs(logits: Tensor, rows: Sequence[SamplingRow], tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
    wanted = {i: row.params.logprobs for i, row in enumerate(rows) if row.params.logprobs is not None}
    return {i: token_logprobs(logits[i : i + 1], [tokens[i]], count)[0] for i, count in wanted.items()}
