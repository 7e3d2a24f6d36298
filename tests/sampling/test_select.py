"""Exact selection from wide rows, against the plain torch operations it replaces."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.sampling.select import GroupedScores, argmax

# Few distinct values make ties; −inf is what a prohibition leaves behind.
VALUES = st.one_of(st.integers(-6, 6).map(lambda i: i / 2), st.just(-math.inf))
ROWS = st.lists(VALUES, min_size=1, max_size=300)


@settings(deadline=None, max_examples=200)
@given(ROWS)
def test_argmax_takes_the_lowest_id_of_a_tie(values: list[float]) -> None:
    expected = values.index(max(values))
    assert argmax(torch.tensor([values])).tolist() == [expected]
    # What the two-level search rests on.
    assert int(torch.tensor(values).argmax()) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 64, 65, 1000, 4096])
def test_argmax_of_many_rows(dtype: torch.dtype, width: int) -> None:
    scores = torch.randn(33, width, generator=torch.Generator().manual_seed(width)).to(dtype)
    assert argmax(scores).tolist() == np.argmax(scores.float().numpy(), axis=1).tolist()
    assert argmax(scores.T.contiguous().T).tolist() == argmax(scores).tolist()


@settings(deadline=None, max_examples=200)
@given(ROWS, VALUES)
def test_at_least(values: list[float], floor: float) -> None:
    ids, kept = GroupedScores.of(torch.tensor(values)).at_least(floor)
    expected = [i for i, v in enumerate(values) if v >= floor and v > -math.inf]
    assert ids.tolist() == expected
    assert kept.tolist() == [values[i] for i in expected]


@settings(deadline=None, max_examples=200)
@given(ROWS, st.integers(1, 310))
def test_largest(values: list[float], k: int) -> None:
    row = GroupedScores.of(torch.tensor(values))
    assert row.maximum == max(values)
    present = [(-v, i) for i, v in enumerate(values) if v > -math.inf]
    ids, kept = row.largest(k)
    assert [(-v, i) for i, v in zip(ids.tolist(), kept.tolist(), strict=True)] == sorted(present)[:k]
    assert row.kth_largest(k) == (-sorted(present)[k - 1][0] if k <= len(present) else -math.inf)
