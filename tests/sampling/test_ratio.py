"""Ratio acceptance's parts: choices, draft distributions, Saguaro sampling, the rule, and its streams in use.

That the rule is exact is shown in tests/oracle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssd.sampling import DraftDistribution, PhiloxChooser, Proposal, SamplingParams, Stream, sample
from ssd.sampling.chooser import Weights
from ssd.sampling.noise import gumbel_from_bits
from ssd.sampling.ratio import (
    certain,
    decide,
    draft_distribution,
    propose,
    residual,
    saguaro,
    target_probabilities,
)
from tests.sampling.noise import gumbel_noise
from tests.sampling.reference import reference_process, sampling_row, softmax

LIMIT = 4.0  # standard deviations, with fixed seeds


def distribution(weights: dict[int, float]) -> DraftDistribution:
    return DraftDistribution(np.array([*weights], np.int32), np.array([*weights.values()], np.float32))


class Fixed(PhiloxChooser):
    """A chooser whose number is given."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self.number = number

    def uniform(self, stream: Stream, position: int) -> float:
        return self.number


def choose(weights: Weights, number: float) -> int:
    return Fixed(number).choose(weights, Stream.DRAFT, 0)


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.1, 0.5, 3.0]), min_size=1, max_size=6).filter(any),
    st.sampled_from([2.0**-53, 0.25, 0.5, 1 - 2.0**-20, 1 - 2.0**-53]),
)
def test_what_has_no_weight_is_never_chosen(weights: list[float], number: float) -> None:
    assert weights[choose(weights, number)] > 0


def test_choices_follow_the_weights_in_order() -> None:
    assert [choose([1, 0, 2, 1], number) for number in (0.2, 0.26, 0.74, 0.76)] == [0, 2, 2, 3]


def test_numbers_are_strictly_between_0_and_1_and_differ_by_seed_stream_and_position() -> None:
    numbers = [
        PhiloxChooser(seed).uniform(stream, position)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for stream in Stream
        for position in (0, 1, 2**32 - 1)
    ]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 1 for number in numbers)


def test_no_stream_is_the_noise() -> None:
    """Under equal counters the first word would be the noise of token 0."""
    noise = float(gumbel_noise([5], [9], 1)[0, 0])
    for stream in Stream:
        bits = int(PhiloxChooser(5).uniform(stream, 9) * 2.0**32)
        assert float(gumbel_from_bits(torch.tensor([bits]))) != pytest.approx(noise, abs=1e-6)


def test_a_draft_distribution_holds_the_likeliest_tokens_as_float32() -> None:
    logits, row = torch.randn(500, generator=torch.manual_seed(1)), sampling_row(SamplingParams())
    q = draft_distribution(logits, row)
    assert q.token_ids.tolist() == logits.topk(64).indices.tolist()
    expected = softmax(logits.double().numpy())[q.token_ids]
    assert q.probabilities == pytest.approx(expected / expected.sum(), rel=1e-6)
    assert q.probabilities.sum() == pytest.approx(1.0, abs=1e-15)
    assert (np.diff(q.weights) <= 0).all()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=3, temperature=0.5),
        SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5),
        SamplingParams(min_p=0.3, logit_bias={2: 3.0}),
    ],
)
def test_both_distributions_are_of_processed_logits(params: SamplingParams) -> None:
    logits, row = torch.tensor([1.5, -0.5, 0.25, 1.0, 0.5]), sampling_row(params, prompt=(3,), output=(0, 0))
    expected = softmax(reference_process(logits.double().numpy(), row)[0])
    assert target_probabilities(logits, row) == pytest.approx(expected, abs=1e-7)
    q = draft_distribution(logits, row)
    assert dict(zip(q.token_ids.tolist(), q.probabilities, strict=True)) == pytest.approx(
        {token: p for token, p in enumerate(expected) if p > 0}, abs=1e-6
    )


@pytest.mark.parametrize(
    ("logits", "params"),
    [
        ([0.5, 2.0, 2.0], SamplingParams(temperature=0)),
        ([-math.inf] * 3, SamplingParams()),
        ([0.0, math.inf, 1.0], SamplingParams()),
    ],
)
def test_where_the_sampler_has_one_answer_so_have_the_distributions(
    logits: list[float], params: SamplingParams
) -> None:
    scores, row = torch.tensor(logits), sampling_row(params)
    token = sample(scores.unsqueeze(0), [row])[0].token
    assert target_probabilities(scores, row).tolist() == [float(i == token) for i in range(3)]
    assert draft_distribution(scores, row).token_ids.tolist() == [token]
    # And whatever was drafted, with whatever chance: greedy matching.
    p = target_probabilities(scores, row)
    for drafted, number in [(0, 0.1), (1, 0.9), (2, 0.5)]:
        proposal = Proposal(drafted, distribution({0: 0.4, 1: 0.3, 2: 0.3}))
        assert decide(p, proposal, Fixed(number), 0) == token


def test_saguaro_lightens_the_likeliest_and_stays_sorted() -> None:
    q = distribution({7: 0.5, 3: 0.25, 5: 0.125, 1: 0.125})
    lighter = saguaro(q, 2, 0.25)
    assert dict(zip(lighter.token_ids.tolist(), lighter.probabilities, strict=True)) == pytest.approx(
        {7: 0.125 / 0.4375, 3: 0.0625 / 0.4375, 5: 0.125 / 0.4375, 1: 0.125 / 0.4375}, rel=1e-6
    )
    assert (np.diff(lighter.weights) <= 0).all()
    assert lighter.weights.sum() == pytest.approx(1.0)  # whoever reads the wire sees probabilities
    assert saguaro(q, 2, 1.0) is q
    assert saguaro(q, 4, 0.5) is q  # nothing to move the mass to


def test_saguaro_moves_the_residual_onto_the_likeliest() -> None:
    p = np.array([0.5, 0.25, 0.125, 0.125])
    q = distribution({0: 0.5, 1: 0.3, 2: 0.1, 3: 0.1})
    rest = residual(p, saguaro(q, 2, 0.5))
    assert rest[:2].sum() / rest.sum() > residual(p, q)[:2].sum() / residual(p, q).sum()


def test_the_residual_of_equals_is_still_something_to_draw_from() -> None:
    p = np.array([0.5, 0.5])
    assert residual(p, distribution({0: 0.5, 1: 0.5})).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        ([], [], "at least one"),
        ([1, 2], [1.0], "one weight for each"),
        ([1, 1], [0.5, 0.5], "each token once"),
        ([-1, 1], [0.5, 0.5], "counting from 0"),
        ([1, 2], [1.0, 0.0], "are positive"),
        ([1, 2], [1.0, math.nan], "are positive"),
    ],
)
def test_malformed_distributions_are_refused(ids: list[int], weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftDistribution(np.array(ids, np.int32), np.array(weights, np.float32))


def test_wrong_types_and_tokens_from_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match="int32 token ids and float32 weights"):
        DraftDistribution(np.array([1]), np.array([1.0], np.float32))
    with pytest.raises(ValueError, match="token 3 is not in the distribution"):
        Proposal(3, distribution({1: 1.0}))
    assert certain(3).probability == 1.0


P = ([0.5, 0.3, 0.2], [0.1, 0.6, 0.3])
Q = ({0: 0.2, 1: 0.7, 2: 0.1}, {0: 0.6, 1: 0.4})


def deviation(streams: Sequence[Stream], num_seeds: int) -> float:
    """Of the seeds' first two tokens, in standard deviations; `streams` stand in for the three."""
    renamed = dict(zip(Stream, streams, strict=True))

    class Renamed(PhiloxChooser):
        def choose(self, weights: Weights, stream: Stream, position: int) -> int:
            return super().choose(weights, renamed[stream], position)

    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(num_seeds):
        chooser = Renamed(seed)
        counts[
            tuple(
                decide(np.array(P[i]), propose(distribution(Q[i]), chooser, i), chooser, i) for i in range(2)
            )
        ] += 1
    expected = {(i, j): P[0][i] * P[1][j] for i in range(3) for j in range(3)}
    return max(
        abs(counts[pair] - num_seeds * p) / math.sqrt(num_seeds * p * (1 - p)) for pair, p in expected.items()
    )


def test_drawn_tokens_have_the_target_s_law() -> None:
    assert deviation(list(Stream), 15_000) < LIMIT


@pytest.mark.parametrize(
    "streams",
    [
        (Stream.DRAFT, Stream.DRAFT, Stream.RESIDUAL),
        (Stream.DRAFT, Stream.ACCEPTANCE, Stream.DRAFT),
        (Stream.DRAFT, Stream.ACCEPTANCE, Stream.ACCEPTANCE),
    ],
)
def test_shared_streams_would_be_seen(streams: Sequence[Stream]) -> None:
    assert deviation(streams, 5_000) > 1.5 * LIMIT
