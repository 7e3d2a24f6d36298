"""One decision per row of logits: y = argmax(z/T + g(seed, position, ·)), and the argmax of z at T = 0.

z are the processed logits in float32. The token of a row is a function of that row alone, to the bit. Knows
the order of the work; the parts are in `processors`, `truncation`, `draw` and `logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ssd.sampling.draw import Draw, draw_tokens
from ssd.sampling.logprobs import token_logprobs
from ssd.sampling.processors import edit_logits, leaves_nothing, needs_edits, scale_logits
from ssd.sampling.rows import SampledToken, SamplingRow, TokenLogprobs
from ssd.sampling.select import WideRow, argmax
from ssd.sampling.truncation import truncation_floor


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Decide the token of each row of logits [R, V]. The logits are left as they are."""
    if logits.ndim != 2 or len(logits) != len(rows):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for {len(rows)} rows: pass one row of logits for each"
        )
    tokens = [0] * len(rows)
    plain, edited, random = _sort_by_work(rows)
    if plain:
        scores = logits if len(plain) == len(rows) else logits[plain]
        for i, token in zip(plain, argmax(scores).tolist(), strict=True):
            tokens[i] = token
    void: set[int] = set()
    for i in edited:
        scores = edit_logits(logits[i], rows[i])
        tokens[i] = int(argmax(scores.unsqueeze(0)))
        void |= {i} if leaves_nothing(scores, rows[i]) else set()
    draws = [_prepare(logits[i], rows[i]) for i in random]
    for i, draw, token in zip(random, draws, draw_tokens(draws), strict=True):
        tokens[i] = token
        void |= {i} if leaves_nothing(draw.scores, rows[i]) else set()
    logprobs = _logprobs(logits, rows, tokens)
    return [SampledToken(token, logprobs.get(i), i in void) for i, token in enumerate(tokens)]


def is_plain(row: SamplingRow) -> bool:
    """Whether this position and all later ones are decided by the bare argmax, and nobody asks how likely."""
    params = row.params
    return params.greedy and params.logprobs is None and not needs_edits(row)


def decide_plain(logits: Tensor) -> list[int]:
    """The tokens of plain rows [R, V]: what `sample` gives, without a record for each."""
    tokens: list[int] = argmax(logits).tolist()
    return tokens


def _sort_by_work(rows: Sequence[SamplingRow]) -> tuple[list[int], list[int], list[int]]:
    """Rows that need a bare argmax, those that need edits before it, and those that need a draw."""
    plain: list[int] = []
    edited: list[int] = []
    random: list[int] = []
    for i, row in enumerate(rows):
        if not row.params.greedy:
            random.append(i)
        elif needs_edits(row):
            edited.append(i)
        else:
            plain.append(i)
    return plain, edited, random


def _prepare(logits: Tensor, row: SamplingRow) -> Draw:
    scores = scale_logits(edit_logits(logits, row), row.params.temperature)
    wide = WideRow.of(scores)
    return Draw(scores, wide, truncation_floor(wide, row.params), row.seed, row.position)


def _logprobs(logits: Tensor, rows: Sequence[SamplingRow], tokens: Sequence[int]) -> dict[int, TokenLogprobs]:
    wanted = {i: row.params.logprobs for i, row in enumerate(rows) if row.params.logprobs is not None}
    return {i: token_logprobs(logits[i : i + 1], [tokens[i]], count)[0] for i, count in wanted.items()}
