"""The processors once more, in plain numpy and float64, from their descriptions: the measure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ssd.sampling import History, SamplingParams, SamplingRow

Row = NDArray[np.float64]


def reference_edits(logits: Row, row: SamplingRow) -> Row:
    z = logits.astype(np.float64).copy()
    params = row.params
    history = [*row.prompt, *row.output]
    for token, bias in params.bias:
        z[token] += bias
    if len(row.output) < params.min_tokens:
        for token in row.end_ids:
            z[token] = -np.inf
    for word in row.bad_word_ids:
        *lead, last = word
        if len(lead) <= len(history) and history[len(history) - len(lead) :] == lead:
            z[last] = -np.inf
    for token in set(history):
        z[token] = (
            z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
        )
    for token in set(row.output):
        z[token] -= params.frequency_penalty * list(row.output).count(token)
    for token in set(row.output):
        z[token] -= params.presence_penalty
    return z


def reference_truncation(z: Row, params: SamplingParams) -> tuple[Row, float]:
    """Truncated scores, and how near top_p's border came to a tie in mass (a tie is anyone's choice)."""
    z = z.copy()
    margin = 1.0
    if np.all(z == -np.inf):
        return z, margin
    if params.min_p > 0:
        p = softmax(z)
        z[p < params.min_p * p.max() * (1 - 1e-12)] = -np.inf
    if 0 < params.top_k < len(z):
        z[z < np.sort(z)[::-1][params.top_k - 1]] = -np.inf
    if params.top_p < 1:
        p = np.sort(softmax(z))[::-1]
        before = np.concatenate([[0.0], np.cumsum(p)[:-1]])
        margin = float(np.abs(np.cumsum(p) - params.top_p).min())
        border = p[before < params.top_p].min()
        z[softmax(z) < border * (1 - 1e-12)] = -np.inf
    return z, margin


def reference_process(logits: Row, row: SamplingRow) -> tuple[Row, float]:
    z = reference_edits(logits, row)
    if row.params.temperature == 0:
        return z, 1.0
    return reference_truncation(z / row.params.temperature, row.params)


def softmax(z: Row) -> Row:
    weights = np.exp(z - z.max())
    return np.asarray(weights / weights.sum())


def sampling_row(
    params: SamplingParams,
    *,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    seed: int = 0,
    position: int | None = None,
    end_ids: tuple[int, ...] = (),
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
) -> SamplingRow:
    return SamplingRow(
        params=params,
        seed=seed,
        position=len(prompt) + len(output) if position is None else position,
        prompt=prompt,
        output=History(output),
        end_ids=end_ids,
        bad_word_ids=bad_word_ids,
    )
