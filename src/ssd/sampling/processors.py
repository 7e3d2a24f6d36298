"""What changes a row's logits before the draw: bias, prohibitions, penalties, temperature, truncation.

The order is vLLM's: logit_bias, min_tokens, bad words, then repetition, frequency and presence penalty, then
what a grammar leaves, then temperature, then min_p, top_k, top_p (`truncation.py`). At temperature 0 the
order ends there, since nothing later moves the argmax. Prohibitions are written last: −inf stays −inf
under all that comes before.

All rows are edited together, each entry by itself, so that a row's bits do not depend on its company. Token
ids outside the row are skipped: a draft may have a smaller head than the target whose parameters it applies
(`SamplingParams.check_vocabulary` refuses them for the target itself). Where everything ends up forbidden the
row is −inf throughout, never NaN, and the sampler takes token 0; where a grammar is involved it says that the
token is void.
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


def edit_rows(logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor | None]:
    """Bias, prohibitions and penalties on rows [R, V]; and which rows [R] a grammar left nothing.

    The same tensor where nothing applies, and a float32 copy otherwise; None where no grammar is involved.
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
    """The same for one row [V]; float32."""
    return edit_rows(logits.unsqueeze(0), [row])[0][0].float()


def leaves_nothing(scores: Tensor, row: SamplingRow) -> bool:
    """Whether no token of a row that must keep to a grammar is left after the edits."""
    return row.allowed is not None and GroupedScores.of(scores).maximum == -math.inf


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
    floor = truncation_floor(GroupedScores.of(scores), row.params)
    return scores if floor == -math.inf else torch.where(scores >= floor, scores, -math.inf)


def bad_word_endings(
    words: Sequence[tuple[int, ...]], prompt: Sequence[int], output: Sequence[int]
) -> list[int]:
    """Tokens that would complete a bad word: those whose leading tokens end prompt + output."""
    if not words:
        return []
    longest = max(len(word) for word in words) - 1
    tail = _tail(prompt, output, longest)
    return [word[-1] for word in words if word and _ends_with(tail, word[:-1])]


def _add_bias(scores: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Adds each bias to its token's logit, in place."""
    width = scores.shape[1]
    pairs = [[pair for pair in row.params.bias if pair[0] < width] for row in rows]
    places = _places(scores, [[token for token, _ in mine] for mine in pairs])
    if len(places):
        values = [value for mine in pairs for _, value in mine]
        scores.view(-1)[places] += torch.tensor(values, device=scores.device)


def _penalise(scores: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Repetition penalty over prompt and output, then frequency and presence over output, in place.

    Repetition divides positive logits and multiplies negative ones, once per token however often it occurred.
    """
    if not any(row.params.penalised for row in rows):
        return
    seen = [_seen(row, scores.shape[1]) for row in rows]
    sizes = [len(ids) for ids, _ in seen]
    offsets = np.repeat(np.arange(len(rows)) * scores.shape[1], sizes)
    places = _on(scores, np.concatenate([ids for ids, _ in seen]) + offsets)

    def spread(numbers: Iterable[float]) -> Tensor:
        """A number of each row, for each of its tokens."""
        return _on(scores, np.repeat(np.fromiter(numbers, np.float32, len(rows)), sizes))

    values, penalty = scores.view(-1)[places], spread(row.params.repetition_penalty for row in rows)
    values = torch.where(values > 0, values / penalty, values * penalty)
    times = _on(scores, np.concatenate([counts for _, counts in seen]).astype(np.float32))
    values -= spread(row.params.frequency_penalty for row in rows) * times
    values -= spread(row.params.presence_penalty for row in rows) * times.clamp(max=1.0)
    scores.view(-1)[places] = values


def _seen(row: SamplingRow, width: int) -> tuple[Ints, Ints]:
    """Tokens that a row's penalties concern, and how often each stands in its output."""
    if not row.params.penalised:
        return _NO_IDS, _NO_IDS
    tally = row.tally or Tally(row.prompt)
    ids, counts = tally.written(row.output if isinstance(row.output, History) else History(row.output))
    if row.params.repetition_penalty != 1.0:
        # What stands in the prompt only was written no times.
        others = tally.only_in_prompt(ids)
        ids, counts = np.concatenate([ids, others]), np.concatenate([counts, np.zeros_like(others)])
    kept = (ids >= 0) & (ids < width)
    return ids[kept], counts[kept]


def _forbid(scores: Tensor, token_ids: Sequence[Sequence[int]]) -> None:
    """Sets some tokens of each row to −inf, in place."""
    places = _places(scores, token_ids)
    if len(places):
        scores.view(-1)[places] = -math.inf


def _keep_allowed(scores: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Sets what grammars do not allow to −inf, in place."""
    masks = {i: row.allowed for i, row in enumerate(rows) if row.allowed is not None}
    if masks:
        allowed = torch.from_numpy(allowed_tokens(list(masks.values()), scores.shape[1])).to(scores.device)
        masked = torch.tensor(list(masks), device=scores.device)
        scores[masked] = torch.where(allowed, scores[masked], -math.inf)


def _forbid_ends(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor | None:
    """Forbids the end where min_tokens wants more text, in place; which rows [R] a grammar leaves nothing.

    Where the text is complete by its grammar, the end is all that is left, and the grammar wins.
    """
    ends = [row.end_ids if _ends_forbidden(row) else () for row in rows]
    places, constrained = _places(scores, ends), [row.allowed is not None for row in rows]
    values = scores.view(-1)[places]
    scores.view(-1)[places] = -math.inf
    if not any(constrained):
        return None
    has_grammar = _on(scores, np.array(constrained))
    if len(places):
        is_over = has_grammar & (scores.amax(1) == -math.inf)
        scores.view(-1)[places] = torch.where(is_over[places // scores.shape[1]], values, -math.inf)
    return has_grammar & (scores.amax(1) == -math.inf)


def _places(scores: Tensor, token_ids: Sequence[Sequence[int]]) -> Tensor:
    """Where some tokens of each row stand in the rows laid end to end; what no row has is left out."""
    width = scores.shape[1]
    places = [row * width + token for row, ids in enumerate(token_ids) for token in ids if 0 <= token < width]
    return torch.tensor(places, dtype=torch.int64, device=scores.device)


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
