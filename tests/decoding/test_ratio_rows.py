"""Ratio acceptance within a batch: its rows beside coupled ones, its log-probabilities, its refusals."""

from __future__ import annotations

import pytest
import torch

from ssd.decoding.rows import DecodeRow, Speculation
from ssd.decoding.verification import verify
from ssd.sampling import PhiloxChooser, Proposal, SamplingParams, token_logprobs
from ssd.sampling.ratio import certain, draft_distribution, propose
from tests.decoding.test_verification import VOCAB, TableModel, sampling_row

RANDOM = SamplingParams(temperature=1.0, logprobs=2, frequency_penalty=0.5)


def proposals(seed: int, count: int) -> list[Proposal]:
    """Drawn by a draft that knows nothing of the sequence."""
    row = sampling_row([2], 1, SamplingParams(), seed)
    q = draft_distribution(torch.linspace(0.0, 1.0, VOCAB), row)
    return [propose(q, PhiloxChooser(seed), 1 + i) for i in range(count)]


def ratio_row(seed: int, count: int = 3, params: SamplingParams = RANDOM) -> DecodeRow:
    drawn = proposals(seed, count)
    return DecodeRow(
        [2, *(each.token for each in drawn)], 0, [0], True, sampling_row([2], 1, params, seed),
        num_drafted=count, acceptance="ratio", proposals=drawn,
    )  # fmt: skip


def test_rows_of_both_rules_and_chunks_do_not_mix() -> None:
    coupled = DecodeRow([2, 4, 1], 0, [0], True, sampling_row([2], 1, RANDOM, 3), num_drafted=2)
    silent = DecodeRow([3, 3], 0, [1], False, None, acceptance="ratio")
    rows = [ratio_row(1), coupled, ratio_row(2, count=0), coupled, ratio_row(3)]
    apart = [verify(TableModel([]), [row])[0] for row in rows]
    assert verify(TableModel([]), rows) == apart
    together = verify(TableModel([]), [rows[0], silent, *rows[1:]])
    assert together[1].tokens == ()
    assert [together[0], *together[2:]] == apart


def test_logprobs_are_of_the_emitted_tokens() -> None:
    lengths = set()
    for seed in range(40):
        [decided] = verify(TableModel([]), [ratio_row(seed)])
        tokens = [2]
        for token in decided.tokens:
            [expected] = token_logprobs(TableModel([]).logits(tokens).unsqueeze(0), [token.token], 2)
            assert token.logprobs == expected
            tokens.append(token.token)
        drafted = [each.token for each in proposals(seed, 3)]
        assert tokens[1:-1] == drafted[: len(tokens) - 2]
        lengths.add(len(decided.tokens))
    assert lengths == {1, 2, 3, 4}


def test_at_temperature_0_the_two_rules_are_one() -> None:
    greedy = SamplingParams(temperature=0.0, presence_penalty=1.0)
    for seed in range(40):
        row = ratio_row(seed, params=greedy)
        coupled = DecodeRow(row.tokens, 0, [0], True, row.sampling, num_drafted=row.num_drafted)
        assert verify(TableModel([]), [row]) == verify(TableModel([]), [coupled])


def test_drafted_tokens_without_proposals_count_as_certain() -> None:
    for seed in range(40):
        drafted = [each.token for each in proposals(seed, 3)]
        guessed, stated = (
            DecodeRow(
                [2, *drafted], 0, [0], True, sampling_row([2], 1, RANDOM, seed),
                num_drafted=3, acceptance="ratio", proposals=given,
            )
            for given in (None, [certain(token) for token in drafted])
        )  # fmt: skip
        assert verify(TableModel([]), [guessed]) == verify(TableModel([]), [stated])


def test_proposals_are_cut_with_their_tokens() -> None:
    drawn = proposals(4, 3)
    speculation = Speculation(tuple(each.token for each in drawn), tuple(drawn))
    assert speculation.first_proposals(2) == tuple(drawn[:2])
    assert Speculation((1, 2)).first_proposals(1) is None
    with pytest.raises(ValueError, match="cut both alike"):
        DecodeRow(
            [2, *speculation.tokens[:2]], 0, [0], True, sampling_row([2], 1, RANDOM, 4),
            num_drafted=2, acceptance="ratio", proposals=drawn,
        )  # fmt: skip
