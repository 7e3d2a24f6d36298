"""The sampler: its definition, on every path; batch invariance to the bit; greedy rows, logprobs, edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ssd.sampling import (
    SampledToken,
    SamplingParams,
    SamplingRow,
    process_logits,
    pruned,
    sample,
    token_logprobs,
)
from ssd.sampling.whole import draw_whole
from tests.sampling.noise import gumbel_noise
from tests.sampling.reference import sampling_row

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 4},
    {"temperature": 0.0, "logit_bias": {5: 30.0}},
    {},
    {"logprobs": 0},
    {"temperature": 0.3},
    {"temperature": 1.9, "logprobs": 7},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"min_p": 0.1},
    {"min_p": 1e-9, "top_p": 0.99},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.02, "temperature": 0.7},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "top_p": 0.5},
    {"min_tokens": 10, "temperature": 0.8},
    {"temperature": 1e-5},
    {"temperature": 1000.0},
]


def make_logits(num_rows: int, vocab_size: int, scale: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def make_rows(vocab_size: int) -> list[SamplingRow]:
    return [
        sampling_row(
            SamplingParams(**changes),
            prompt=tuple((7 * i + j) % vocab_size for j in range(9)),
            output=tuple((3 * i + j * j) % vocab_size for j in range(i % 6)),
            seed=1000 + i,
            end_ids=(1 % vocab_size,),
            bad_word_ids=((2 % vocab_size,),) if i % 3 == 0 else (),
        )
        for i, changes in enumerate(SETTINGS)
    ]


def by_definition(logits: torch.Tensor, row: SamplingRow) -> int:
    scores = process_logits(logits, row)
    if not row.params.greedy:
        scores = scores + gumbel_noise([row.seed], [row.position], len(scores))[0]
    return scores.tolist().index(max(scores.tolist()))


@pytest.mark.parametrize("vocab_size", [3, 17, 64, 1003, 20_000])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 20.0])
def test_every_path_keeps_to_the_definition(vocab_size: int, scale: float) -> None:
    rows = make_rows(vocab_size)
    rows = [row for row in rows if all(token < vocab_size for token, _ in row.params.bias)]
    logits = make_logits(len(rows), vocab_size, scale)
    before = logits.clone()
    tokens = [result.token for result in sample(logits, rows)]
    assert tokens == [by_definition(logits[i], row) for i, row in enumerate(rows)]
    assert torch.equal(logits, before), "the logits belong to the caller"


def narrow_rows_by(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Which rows get noise for single tokens: none, as usual, all."""
    monkeypatch.setattr(pruned, "_WORTHWHILE", share)
    monkeypatch.setattr(pruned, "_CLEAR", min(share, 0.1))


def test_few_tokens_or_all_of_them_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"whole": 0, "among": 0}
    whole, among = draw_whole, pruned._note_winners
    monkeypatch.setattr(
        pruned, "draw_whole", lambda *a: (calls.update(whole=calls["whole"] + len(a[0])), whole(*a))[1]
    )
    monkeypatch.setattr(
        pruned,
        "_note_winners",
        lambda t, e, d: (calls.update(among=calls["among"] + len(e)), among(t, e, d))[1],
    )
    mixture: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"temperature": 0.5}, {"min_p": 1e-6}]
    rows = [
        sampling_row(SamplingParams(**changes), seed=seed, position=seed)
        for seed in range(40)
        for changes in mixture
    ]
    logits = make_logits(len(rows), 5000, 8.0)
    tokens = {}
    for share in (-1.0, 0.15, 1.0):
        calls.update(whole=0, among=0)
        narrow_rows_by(monkeypatch, share)
        tokens[share] = sample(logits, rows)
        assert (calls["whole"] == 0) == (share == 1.0)
        assert (calls["among"] == 0) == (share == -1.0)
    assert tokens[-1.0] == tokens[0.15] == tokens[1.0]


@pytest.mark.parametrize("vocab_size", [1003, 20_011])
@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_a_row_alone_equals_the_row_in_company_to_the_bit(vocab_size: int, scale: float) -> None:
    rows = make_rows(vocab_size)
    logits = make_logits(len(rows), vocab_size, scale)
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    backwards = sample(logits.flip(0), rows[::-1])[::-1]
    # Dataclass equality covers token, and the log-probabilities as exact floats.
    assert together == alone == backwards


def test_plain_greedy_rows_touch_neither_noise_nor_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("a greedy row needs none of this")

    monkeypatch.setattr("ssd.sampling.processors._penalise", unexpected)
    monkeypatch.setattr("ssd.sampling.processors._forbid", unexpected)
    monkeypatch.setattr("ssd.sampling.pruned.noise_of_tokens", unexpected)
    monkeypatch.setattr("ssd.sampling.whole.noise_of_rows", unexpected)
    logits = make_logits(4, 1000, 1.0).bfloat16()
    results = sample(logits, [sampling_row(SamplingParams(temperature=0))] * 4)
    assert results == [SampledToken(int(row.float().argmax()), None) for row in logits]


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_nothing_allowed_gives_token_zero(changes: dict[str, Any]) -> None:
    row = sampling_row(SamplingParams(**changes), bad_word_ids=tuple((i,) for i in range(5)))
    assert sample(torch.randn(1, 5), [row])[0].token == 0
    plain = sampling_row(SamplingParams(**changes))
    assert sample(torch.full((1, 5), -math.inf), [plain])[0].token == 0


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_row_costs_its_own_token_only(changes: dict[str, Any], broken: float) -> None:
    """A model that overflows must not take the batch down with it."""
    row = sampling_row(SamplingParams(**changes), output=(1, 2))
    logits = make_logits(2, 200, 2.0)
    expected = sample(logits, [row, row])[1]
    logits[0, 7] = broken
    first, second = sample(logits, [row, row])
    assert 0 <= first.token < 200
    assert second == expected


def test_logprobs_are_of_the_raw_logits_and_only_where_asked() -> None:
    logits = make_logits(3, 300, 2.0)
    rows = [
        sampling_row(SamplingParams(logprobs=2, logit_bias={9: 50.0}, temperature=0.5)),
        sampling_row(SamplingParams(temperature=0.0)),
        sampling_row(SamplingParams(logprobs=0, temperature=0.0)),
    ]
    first, second, third = sample(logits, rows)
    assert first.token == 9
    assert first.logprobs == token_logprobs(logits[:1], [9], 2)[0]
    assert second.logprobs is None
    assert third.logprobs is not None
    assert third.logprobs.rank == 1
    assert third.logprobs.top == ()


def test_no_rows_and_wrong_shapes() -> None:
    assert sample(torch.zeros(0, 5), []) == []
    row = sampling_row(SamplingParams())
    with pytest.raises(ValueError, match=r"shape \(2, 5\) for 1 rows"):
        sample(torch.zeros(2, 5), [row])
    with pytest.raises(ValueError, match=r"shape \(5,\) for 1 rows"):
        sample(torch.zeros(5), [row])
