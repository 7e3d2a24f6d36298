"""Logits processors: bias, forbidden tokens, penalties, temperature, truncation.

The order is vLLM's: logit_bias, min_tokens, bad words, then repetition, frequency and presence penalty, the
grammar's mask, temperature, and min_p, top_k, top_p (`truncation.py`). At temperature 0 the mask is the last
step, since temperature and truncation do not move the argmax. Forbidden tokens are set to −inf last; that
gives the same result, since −inf stays −inf in the steps before.

All rows are edited together, but each entry on its own, so that a row's bits do not depend on other rows.
Token ids beyond the row's width are skipped: a draft may have a smaller head than the target whose parameters
it applies (`SamplingParams.check_vocabulary` refuses such ids for the target). If all tokens are forbidden,
the row is −inf throughout, never NaN, and the sampler decides token 0; if a grammar forbade them, the sampler
marks the token as void.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.sampling.constraint import allowed_tokens
from ssd.sampling.history import History
from ssd.sampling.rows import SamplingRow
from ssd.sampling.select import GroupedScores
from ssd.sampling.tally import Tally
from ssd.sampling.truncation import truncation_floor

Ints = NDArray[np.int64]
_NO_IDS = np.empty(0, np.int64)


def needs_edits(row: SamplingRow) -> bool:
    """Whether a processor before the temperature applies to this row."""
    params = row.params
    return bool(
        params.bias
        or row.bad_word_ids
        or params.penalised
        or row.constraint is not None
        or row.allowed is not None
        or _ends_forbidden(row)
    )


def edit_rows(logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor | None]:
    """Applies bias, penalties and forbidden tokens to rows [R, V]. Also returns which rows [R] have no token
    left because of a grammar; None if there is no grammar.

    Returns the same tensor if nothing applies, else a float32 copy.
    """
    if not any(map(needs_edits, rows)):
        return logits, None
    scores = logits.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    _add_bias(scores, rows)
    _penalise(scores, rows)
    _forbid(scores, [bad_word_endings(row.bad_word_ids, row.prompt, row.output) for row in rows])
    _keep_allowed(scores, rows)
    return scores, _forbid_ends(scores, rows)


def edit_logits(logits: Tensor, row: SamplingRow) -> Tensor:
    """`edit_rows` for one row [V]; returns float32."""
    return edit_rows(logits.unsqueeze(0), [row])[0][0].float()


def scale_logits(scores: Tensor, temperature: float) -> Tensor:
    """scores / temperature; the same tensor at temperature 1."""
    if temperature == 1.0:
        return scores
    # By a tensor: on some devices dividing by a Python number becomes a product with its reciprocal.
    return scores / torch.full((1,), temperature, device=scores.device)


def process_logits(logits: Tensor, row: SamplingRow) -> Tensor:
    """Applies all processors to one row [V]; dropped tokens are −inf.

    The sampler does not use this: it compares scores with the floor instead of building masked rows.
    """
    scores = edit_logits(logits, row)
    if row.params.greedy:
        return scores
    scores = scale_logits(scores, row.params.temperature)
    floor = truncation_floor(GroupedScores.of(scores), row.params)
    return scores if floor == -math.inf else torch.where(scores >= floor, scores, -math.inf)


def bad_word_endings(
    words: Sequence[tuple[int, ...]], prompt: Sequence[int], output: Sequence[int]
) -> list[int]:
    """Tokens that would complete a bad word whose leading tokens are the end of prompt + output."""
    if not words:
        return []
    longest = max(len(word) for word in words) - 1
    tail = _tail(prompt, output, longest)
    return [word[-1] for word in words if word and _ends_with(tail, word[:-1])]


def _add_bias(scores: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Adds each bias to its token's logit, in place."""
    width = scores.shape[1]
    pairs = [[pair for pair in row.params.bias if pair[0] < width] for row in rows]
    indices = _flat_indices(scores, [[token for token, _ in row_pairs] for row_pairs in pairs])
    if len(indices):
        values = [value for row_pairs in pairs for _, value in row_pairs]
        scores.view(-1)[indices] += torch.tensor(values, device=scores.device)


def _penalise(scores: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Repetition penalty over prompt and output, then frequency and presence over output, in place.

    The repetition penalty divides positive logits and multiplies negative ones, once for each distinct token.
    """
    if not any(row.params.penalised for row in rows):
        return
    seen = [_seen(row, scores.shape[1]) for row in rows]
    sizes = [len(ids) for ids, _ in seen]
    offsets = np.repeat(np.arange(len(rows)) * scores.shape[1], sizes)
    indices = _on(scores, np.concatenate([ids for ids, _ in seen]) + offsets)

    def spread(numbers: Iterable[float]) -> Tensor:
        """Repeats each row's number for each of its tokens."""
        return _on(scores, np.repeat(np.fromiter(numbers, np.float32, len(rows)), sizes))

    values, penalty = scores.view(-1)[indices], spread(row.params.repetition_penalty for row in rows)
    values = torch.where(values > 0, values / penalty, values * penalty)
    counts = _on(scores, np.concatenate([counts for _, counts in seen]).astype(np.float32))
    values -= spread(row.params.frequency_penalty for row in rows) * counts
    values -= spread(row.params.presence_penalty for row in rows) * counts.clamp(max=1.0)
    scores.view(-1)[indices] = values


def _seen(row: SamplingRow, width: int) -> tuple[Ints, Ints]:
    """Tokens that a row's penalties apply to, and how often each occurs in its output."""
    if not row.params.penalised:
        return _NO_IDS, _NO_IDS
    tally = row.tally or Tally(row.prompt)
    ids, counts = tally.output_counts(row.output if isinstance(row.output, History) else History(row.output))
    if row.params.repetition_penalty != 1.0:
        others = tally.only_in_prompt(ids)
        ids, counts = np.concatenate([ids, others]), np.concatenate([counts, np.zeros_like(others)])
    is_inside = (ids >= 0) & (ids < width)
    return ids[is_inside], counts[is_inside]


def _forbid(scores: Tensor, token_ids: Sequence[Sequence[int]]) -> None:
    """Sets these tokens of each row to −inf, in place."""
    indices = _flat_indices(scores, token_ids)
    if len(indices):
        scores.view(-1)[indices] = -math.inf


def _keep_allowed(scores: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Sets tokens that a row's grammar does not allow to −inf, in place."""
    masks = {i: row.allowed for i, row in enumerate(rows) if row.allowed is not None}
    if masks:
        allowed = torch.from_numpy(allowed_tokens(list(masks.values()), scores.shape[1])).to(scores.device)
        masked = torch.tensor(list(masks), device=scores.device)
        scores[masked] = torch.where(allowed, scores[masked], -math.inf)


def _forbid_ends(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor | None:
    """Forbids end tokens before min_tokens, in place. Returns which rows [R] have no token left because of a
    grammar; None if there is no grammar.

    If the grammar allows only end tokens, the text is complete: the grammar has priority over min_tokens.
    """
    ends = [row.end_ids if _ends_forbidden(row) else () for row in rows]
    indices, constrained = _flat_indices(scores, ends), [row.allowed is not None for row in rows]
    values = scores.view(-1)[indices]
    scores.view(-1)[indices] = -math.inf
    if not any(constrained):
        return None
    has_grammar = _on(scores, np.array(constrained))
    if len(indices):
        is_over = has_grammar & (scores.amax(1) == -math.inf)
        scores.view(-1)[indices] = torch.where(is_over[indices // scores.shape[1]], values, -math.inf)
    return has_grammar & (scores.amax(1) == -math.inf)


def _flat_indices(scores: Tensor, token_ids: Sequence[Sequence[int]]) -> Tensor:
    """Indices of these tokens of each row in the flattened scores; skips ids beyond the width."""
    width = scores.shape[1]
    kept = ((row, token) for row, ids in enumerate(token_ids) for token in ids if 0 <= token < width)
    indices = [row * width + token for row, token in kept]
    return torch.tensor(indices, dtype=torch.int64, device=scores.device)


def _on(scores: Tensor, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values).to(scores.device)


def _ends_forbidden(row: SamplingRow) -> bool:
    return bool(row.end_ids) and len(row.output) < row.params.min_tokens


def _tail(prompt: Sequence[int], output: Sequence[int], count: int) -> list[int]:
    """The last `count` tokens of prompt + output, without joining the two."""
    if count <= 0:
        return []
    tail = list(output[-count:])
    lacking = count - len(tail)
    return [*prompt[-lacking:], *tail] if lacking else tail


def _ends_with(tail: list[int], tokens: tuple[int, ...]) -> bool:
    return not tokens or tuple(tail[-len(tokens) :]) == tokens
