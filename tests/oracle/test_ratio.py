"""Ratio acceptance has AR's joint law under any honest draft and any schedule; and what is wrong shows.

The full form is `python -m tests.oracle.ratio`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from ssd.config import Acceptance
from ssd.decoding.drafter import RatioDrafting
from ssd.decoding.rows import DecodeRow, Speculation
from ssd.decoding.verification import accept_by_ratio, decided_positions, worth_verifying
from ssd.sampling import Chooser, DraftDistribution, History, Proposal, SamplingParams, SamplingRow, ratio
from ssd.sampling.constraint import Allowed
from ssd.sampling.ratio import Probabilities, saguaro
from tests.oracle.enumeration import law_of
from tests.oracle.ratio import (
    HONEST,
    PARAMS,
    Adversary,
    Draft,
    Game,
    Tokens,
    arbitrary,
    full_deviation,
    full_law,
    honest,
    light,
)

EXACT = 1e-12
SEEN = 1e-3


@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
@pytest.mark.parametrize("draft", HONEST)
def test_no_schedule_changes_the_law(params: SamplingParams, draft: Draft) -> None:
    for number in range(3):
        assert Adversary(Game(params, number=number, draft=draft)).deviation() < EXACT


@pytest.mark.parametrize(("vocab", "length"), [(4, 3), (5, 2), (3, 4)])
def test_larger_games(vocab: int, length: int) -> None:
    assert Adversary(Game(PARAMS[1], vocab, length, draft=arbitrary)).deviation() < EXACT


@pytest.mark.parametrize("draft", [honest, arbitrary])
def test_guesses_without_a_distribution_among_drawn_tokens(draft: Draft) -> None:
    """Whatever tokens an adversary puts in, and even if it looks at them: they count as certain."""
    game = Game(PARAMS[3], lookahead=2, draft=draft)
    assert Adversary(game, guessing=True).deviation() < EXACT


@pytest.mark.parametrize("settings", [RatioDrafting(), RatioDrafting(saguaro=0.4, fan_out=1)])
def test_whole_generations_with_the_drafter(settings: RatioDrafting) -> None:
    game = Game(PARAMS[2], length=2, number=2)
    for lengths in itertools.product(range(3), repeat=2):
        law = full_law(game, lengths, settings)
        assert sum(law.probabilities.values()) == pytest.approx(1.0, abs=EXACT)
        assert full_deviation(game, law) < EXACT, lengths


def test_looking_at_the_token_being_cut_is_caught() -> None:
    """The one forbidden schedule. It is also why a ratio speculation may not pick its path by q."""
    assert Adversary(Game(PARAMS[0]), peeking=True).deviation() > SEEN


def test_a_wrong_residual_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def target_itself(p: Probabilities, q: DraftDistribution) -> Probabilities:
        return p

    monkeypatch.setattr(ratio, "residual", target_itself)
    assert Adversary(Game(PARAMS[0])).deviation() > SEEN


def test_a_distribution_other_than_the_sampled_one_is_caught() -> None:
    def lying(game: Game, tokens: Tokens, chooser: Chooser) -> Proposal:
        drawn = honest(game, tokens, chooser)
        return Proposal(drawn.token, saguaro(drawn.distribution, 1, 0.5))

    assert Adversary(Game(PARAMS[0], draft=light)).deviation() < EXACT
    assert Adversary(Game(PARAMS[0], draft=lying)).deviation() > SEEN


def test_float32_weights_taken_for_probabilities_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sum is off by some 1e-8: too little to see in samples, and the bound is tight enough for it."""

    def as_they_are(q: DraftDistribution) -> Probabilities:
        return q.weights.astype(np.float64)

    monkeypatch.setattr(DraftDistribution, "probabilities", property(as_they_are))
    assert 1e-6 > max(Adversary(Game(PARAMS[0], number=n)).deviation() for n in range(4)) > EXACT


def test_accepting_equal_tokens_at_a_temperature_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of others: the target's likeliest token, if it was drafted, taken as it is."""

    def by_argmax(p: Probabilities, proposal: Proposal | None, chooser: Chooser, position: int) -> int:
        if proposal is not None and proposal.token == int(p.argmax()):
            return proposal.token
        return ratio.decide(p, None, chooser, position)

    monkeypatch.setattr("ssd.decoding.verification.decide", by_argmax)
    assert Adversary(Game(PARAMS[0])).deviation() > SEEN


class OnlySome:
    """A grammar that allows some tokens, everywhere."""

    problem, most_drafted = "", 64

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def state(self) -> None: ...

    def num_allowed(self, drafted: Sequence[int]) -> int:
        return next((i for i, token in enumerate(drafted) if token not in self._tokens), len(drafted))

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        bits = sum(1 << token for token in self._tokens)
        return [np.array([bits], np.int32)] * (self.num_allowed(drafted) + 1)

    def advance(self, tokens: Sequence[int]) -> None: ...


@pytest.mark.parametrize("acceptance", ["ratio", "coupled"])
def test_a_draft_that_does_not_know_the_grammar(acceptance: Acceptance) -> None:
    """Its token stays and is rejected. Cut off, as coupled acceptance may do, it would shift the law."""
    q = DraftDistribution(np.arange(4, dtype=np.int32), np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    row = SamplingRow(
        SamplingParams(temperature=1.0), 0, 2, (1, 0), History((1, 0), 2), constraint=OnlySome(0, 3)
    )
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.5], [1.0, 0.0, 0.0, 0.0]])

    def play(chooser: Chooser) -> int:
        proposal = ratio.propose(q, chooser, 2)
        drafted, _chain = worth_verifying(Speculation((proposal.token,)), row.constraint, acceptance)
        decode = DecodeRow((0, *drafted), 1, (0,), generated=True, sampling=row, num_drafted=len(drafted))
        places = decided_positions(decode)
        proposals = (proposal,)[: len(drafted)]
        return accept_by_ratio(logits[: len(places)], places, proposals, chooser)[0].token

    law = law_of(play).probabilities
    weights = np.exp([0.0, 0.5])
    expected = dict(zip((0, 3), weights / weights.sum(), strict=True))
    deviation = max(abs(law[token] - expected[token]) for token in expected)
    assert set(law) == set(expected)
    assert deviation < EXACT if acceptance == "ratio" else deviation > SEEN
