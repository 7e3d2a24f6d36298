"""min_p, top_k and top_p: borders, ties, order, and the same answer however much of the row is looked at."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ssd.sampling import SamplingParams, Truncation, truncation
from ssd.sampling.ragged import BatchedScores
from ssd.sampling.select import GroupedScores, grouped
from ssd.sampling.truncation import truncation_floor
from tests.sampling.reference import reference_truncation


def kept(values: list[float], params: SamplingParams) -> list[int]:
    row = torch.tensor(values)
    floor = truncation_floor(GroupedScores.of(row), params)
    return [i for i, v in enumerate(values) if v >= floor and v > -math.inf]


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(st.integers(-160, 40).map(lambda i: i / 8), st.just(-math.inf)), min_size=1, max_size=150
    ),
    st.sampled_from([0.0, 0.013, 0.21, 1.0]),
    st.sampled_from([0, 1, 2, 7, 64, 200]),
    st.sampled_from([0.05, 0.37, 0.8, 0.95, 0.9999, 1.0]),
)
def test_matches_the_reference(values: list[float], min_p: float, top_k: int, top_p: float) -> None:
    params = SamplingParams(min_p=min_p, top_k=top_k, top_p=top_p)
    expected, margin = reference_truncation(np.array(values), params)
    assume(margin > 1e-7)
    assert kept(values, params) == np.flatnonzero(expected > -np.inf).tolist()


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("top_k", [0, 300])
def test_looking_at_a_part_gives_the_answer_of_a_full_sort(
    monkeypatch: pytest.MonkeyPatch, scale: float, top_p: float, top_k: int
) -> None:
    scores = torch.randn(20_011, generator=torch.Generator().manual_seed(4)) * scale
    scores[1::3] = scores[0::3][: len(scores[1::3])]  # pairs of equals
    params = SamplingParams(top_p=top_p, top_k=top_k)
    row = GroupedScores.of(scores)
    stepwise = truncation_floor(row, params)
    monkeypatch.setattr(truncation, "_DEPTHS", (truncation._WEIGHTLESS,))
    assert truncation_floor(row, params) == stepwise
    # By a sort of the whole row, in whole numbers of Python.
    allowed = scores if top_k == 0 else scores[scores >= scores.topk(top_k).values[-1]]
    ordered = allowed.double().sort(descending=True).values
    weights = [int(w) for w in ((ordered - ordered[0]).exp() * 2.0**34).round().tolist()]
    needed = max(1.0, top_p * sum(weights))
    border = next(i for i, mass in enumerate(accumulate(weights)) if mass >= needed)
    assert stepwise == float(ordered[border])


def ragged(scores: torch.Tensor) -> BatchedScores:
    groups = grouped(scores)
    return BatchedScores(groups, groups.amax(-1), np.arange(len(scores)), np.ones(len(scores), np.float32))


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0, 10.0, 300.0])
@pytest.mark.parametrize("shift", [0.0, 50.0, -1000.0])
def test_the_quick_mass_is_as_near_as_it_says(scale: float, shift: float) -> None:
    scores = torch.randn(5, 20_011, generator=torch.Generator().manual_seed(6)) * scale + shift
    scores[2, 100:] = -math.inf
    rows = ragged(scores)
    peaks = rows.maxima.astype(np.float64)
    for depth in (2.0, 24.3):
        floors = (peaks - depth).astype(np.float32)
        low, high = truncation._mass_bounds(rows, floors, peaks)
        exact = truncation._masses(rows, floors, peaks)
        assert (low <= exact).all()
        assert (exact <= high).all()
        assert ((high - low) < 1e-4 * exact + 4 * rows.width).all()


def test_where_the_quick_mass_cannot_tell_the_exact_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ragged(torch.randn(6, 5000, generator=torch.Generator().manual_seed(7)))
    wanted = Truncation.of([SamplingParams(top_p=p) for p in (0.1, 0.5, 0.9, 0.99, 0.9999, 1.0)])
    assert wanted is not None
    usual = truncation.ragged_floors(rows, wanted)
    monkeypatch.setattr(truncation, "_mass_bounds", lambda r, f, p: np.stack((np.zeros(6), np.full(6, 1e17))))
    assert truncation.ragged_floors(rows, wanted).tolist() == usual.tolist()


def test_weights_of_a_flat_row_are_summed_exactly() -> None:
    logits = torch.zeros(2, 2**19)
    rows = ragged(logits)
    assert truncation._masses(rows, np.full(2, -1, np.float32), np.zeros(2)).tolist() == [2.0**53] * 2
    assert truncation_floor(GroupedScores.of(logits[0]), SamplingParams(top_p=0.5)) == 0.0
