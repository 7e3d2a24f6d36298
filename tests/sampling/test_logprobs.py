"""Log-probabilities of raw logits, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ssd.sampling import token_logprobs


@pytest.mark.parametrize("vocab_size", [1, 5, 63, 1000, 50_257])
@pytest.mark.parametrize("scale", [0.01, 3.0, 30.0])
def test_against_float64(vocab_size: int, scale: float) -> None:
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1)) * scale
    tokens = [(37 * i) % vocab_size for i in range(4)] + [int(logits[4].argmax())]
    exact = logits.double().numpy()
    exact = exact - exact.max(1, keepdims=True)
    exact = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    for row, token, result in zip(exact, tokens, token_logprobs(logits, tokens, 5), strict=True):
        assert result.token == token
        assert result.logprob == pytest.approx(row[token], abs=2e-6)
        assert result.rank == 1 + int((row > row[token]).sum())
        best = np.argsort(-row, kind="stable")[:5]
        assert [i for i, _ in result.top] == best.tolist()
        assert [p for _, p in result.top] == pytest.approx(row[best].tolist(), abs=2e-6)
        assert result.logprob <= 0.0


def test_ties_go_by_id_and_share_a_rank() -> None:
    (result,) = token_logprobs(torch.tensor([[1.0, 2.0, 1.0, 1.0]]), [3], 3)
    assert [i for i, _ in result.top] == [1, 0, 2]
    assert result.rank == 2


def test_none_on_top_and_huge_logits() -> None:
    (result,) = token_logprobs(torch.tensor([[1e4, -1e4, 1e4]]), [0], 0)
    assert result.top == ()
    assert result.logprob == pytest.approx(-np.log(2))


def test_one_token_a_row() -> None:
    with pytest.raises(ValueError, match="1 tokens for 2 rows"):
        token_logprobs(torch.zeros(2, 3), [0], 1)
