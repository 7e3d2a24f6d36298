"""What changes a row's logits before the draw: bias, prohibitions, penalties, temperature, truncation.

The order is vLLM's: logit_bias, min_tokens, bad words, then repetition, frequency and presence penalty, then
what a grammar leaves, then temperature, then min_p, top_k, top_p (`truncation.py`). At temperature 0 the
order ends there, since nothing later moves the argmax.

Each row is worked on by itself, with calls whose shapes do not depend on other rows, so its bits do not
either. Token ids outside the row are skipped: a draft may have a smaller head than the target whose
parameters it applies (`SamplingParams.check_vocabulary` refuses them for the target itself). Where everything
ends up forbidden the row is −inf throughout, never NaN, and the sampler takes token 0; where a grammar is
involved it says that the token is void.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.sampling.constraint import forbid_all_but
from ssd.sampling.params import BiasPairs, SamplingParams
from ssd.sampling.rows import SamplingRow
from ssd.sampling.select import WideRow
from ssd.sampling.truncation import truncation_floor


def needs_edits(row: SamplingRow) -> bool:
    """Whether anything before the temperature applies to this row."""
    params = row.params
    return bool(
        params.bias
        or row.bad_word_ids
        or params.penalised
        or row.constraint is not None
        or row.allowed is not None
        or _ends_forbidden(row)
    )


def edit_logits(logits: Tensor, row: SamplingRow) -> Tensor:
    """Bias, prohibitions and penalties on one row [V]; float32. The same tensor where nothing applies."""
    scores = logits.float()
    if not needs_edits(row):
        return scores
    scores = scores.clone() if scores is logits else scores
    add_bias(scores, row.params.bias)
    forbid(scores, row.end_ids if _ends_forbidden(row) else ())
    forbid(scores, bad_word_endings(row.bad_word_ids, row.prompt, row.output))
    penalise(scores, row.params, row.prompt, row.output)
    if row.allowed is not None:
        forbid_all_but(scores, row.allowed)
        if _ends_forbidden(row) and leaves_nothing(scores, row):
            # The text is complete, and min_tokens wants more of it: the grammar wins.
            return edit_logits(logits, replace(row, end_ids=()))
    return scores


def leaves_nothing(scores: Tensor, row: SamplingRow) -> bool:
    """Whether no token of a row that must keep to a grammar is left after the edits."""
    return row.allowed is not None and WideRow.of(scores).maximum == -math.inf


def scale_logits(scores: Tensor, temperature: float) -> Tensor:
    """scores / temperature. Temperature 1 costs nothing."""
    if temperature == 1.0:
        return scores
    # By a tensor: a division by a Python number may become a product with its reciprocal on some devices.
    return scores / torch.full((1,), temperature, device=scores.device)


def process_logits(logits: Tensor, row: SamplingRow) -> Tensor:
    """All processors on one row [V]: what the noise is added to, with dropped tokens at −inf.

    The sampler does not build this (it carries the floor instead); for those who need whole rows.
    """
    scores = edit_logits(logits, row)
    if row.params.greedy:
        return scores
    scores = scale_logits(scores, row.params.temperature)
    floor = truncation_floor(WideRow.of(scores), row.params)
    return scores if floor == -math.inf else torch.where(scores >= floor, scores, -math.inf)


def add_bias(scores: Tensor, bias: BiasPairs) -> None:
    """Add each bias to its token's logit, in place."""
    pairs = [(token, value) for token, value in bias if token < len(scores)]
    if pairs:
        ids = torch.tensor([token for token, _ in pairs], device=scores.device)
        scores[ids] += torch.tensor([value for _, value in pairs], device=scores.device)


def forbid(scores: Tensor, token_ids: Sequence[int]) -> None:
    """Set tokens to −inf, in place."""
    ids = [token for token in token_ids if 0 <= token < len(scores)]
    if ids:
        scores[torch.tensor(ids, device=scores.device)] = -math.inf


def bad_word_endings(
    words: Sequence[tuple[int, ...]], prompt: Sequence[int], output: Sequence[int]
) -> list[int]:
    """Tokens that would complete a bad word: those whose leading tokens end prompt + output."""
    if not words:
        return []
    longest = max(len(word) for word in words) - 1
    tail = _tail(prompt, output, longest)
    return [word[-1] for word in words if word and _ends_with(tail, word[:-1])]


def penalise(scores: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Repetition penalty over prompt and output, then frequency and presence over output, in place.

    Repetition divides positive logits and multiplies negative ones, once per token however often it occurred.
    """
    if not params.penalised:
        return
    written, counts = _distinct(output, len(scores))
    if params.repetition_penalty != 1.0:
        seen = np.union1d(_distinct(prompt, len(scores))[0], written)
        ids = torch.from_numpy(seen).to(scores.device)
        values = scores[ids]
        penalty = torch.full((1,), params.repetition_penalty, device=scores.device)
        scores[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        ids = torch.from_numpy(written).to(scores.device)
        times = torch.from_numpy(counts).to(scores.device, torch.float32)
        scores[ids] = scores[ids] - params.frequency_penalty * times - params.presence_penalty


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


def _distinct(tokens: Sequence[int], vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct tokens inside the vocabulary and how often each occurs. Arrays are taken without a copy."""
    ids, counts = np.unique(np.asarray(tokens, dtype=np.int64), return_counts=True)
    inside = (ids >= 0) & (ids < vocab_size)
    return ids[inside], counts[inside]
