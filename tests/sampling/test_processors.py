"""Each processor and their order, against the float64 reference; penalties and prohibitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ssd.sampling import SamplingParams, SamplingRow, process_logits
from ssd.sampling.processors import bad_word_endings, edit_logits, needs_edits
from tests.sampling.reference import reference_process, sampling_row

VOCAB = 21
TOKENS = st.integers(0, VOCAB - 1)
HISTORY = st.lists(TOKENS, max_size=8).map(tuple)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)

# Values that float32 holds exactly and operations that round nowhere, so ties are ties in the reference too.
LOGITS = st.lists(st.integers(-64, 64).map(lambda i: i / 8), min_size=VOCAB, max_size=VOCAB)
PARAMS: st.SearchStrategy[SamplingParams] = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 10]),
    top_p=st.sampled_from([0.37, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.21]),
    repetition_penalty=st.sampled_from([1.0, 2.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.5]),
    logit_bias=st.one_of(st.none(), st.dictionaries(TOKENS, st.integers(-8, 8).map(lambda i: i / 4))),
    min_tokens=st.sampled_from([0, 3]),
)
ROWS: st.SearchStrategy[SamplingRow] = st.builds(
    lambda params, prompt, output, end_ids, words: sampling_row(
        params, prompt=prompt, output=output, end_ids=end_ids, bad_word_ids=words
    ),
    PARAMS,
    HISTORY,
    HISTORY,
    st.lists(TOKENS, max_size=2).map(tuple),
    WORDS,
)


@settings(deadline=None, max_examples=400)
@given(LOGITS, ROWS)
def test_all_processors_in_order(logits: list[float], row: SamplingRow) -> None:
    expected, margin = reference_process(np.array(logits), row)
    assume(margin > 1e-7)
    given_logits = torch.tensor(logits)
    processed = process_logits(given_logits, row)
    np.testing.assert_allclose(processed.double().numpy(), expected, rtol=1e-6, atol=1e-6)
    assert given_logits.tolist() == logits, "the input belongs to the caller"


def edited(values: list[float], params: SamplingParams, **row: Any) -> list[float]:
    result: list[float] = edit_logits(torch.tensor(values), sampling_row(params, **row)).tolist()
    return result


def test_nothing_to_do_costs_nothing() -> None:
    logits = torch.randn(8)
    row = sampling_row(SamplingParams(min_tokens=1), prompt=(1, 2), output=(3,), end_ids=(0,))
    assert not needs_edits(row)
    assert edit_logits(logits, row).data_ptr() == logits.data_ptr()
    assert process_logits(logits, row).data_ptr() == logits.data_ptr()


def test_half_precision_logits_are_processed_in_float32() -> None:
    row = sampling_row(SamplingParams(temperature=3.0, repetition_penalty=1.3), output=(1,))
    logits = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    expected = torch.tensor([1.0, 2.0 / torch.tensor(1.3), 3.0]) / torch.tensor([3.0])
    assert torch.equal(process_logits(logits, row), expected)


@pytest.mark.parametrize(
    ("words", "prompt", "output", "expected"),
    [
        (((5,),), (), (), [5]),
        (((5,), (6,)), (1,), (2,), [5, 6]),
        (((1, 5),), (), (1,), [5]),
        (((1, 5),), (1,), (), [5]),
        (((1, 5),), (), (), []),
        (((1, 5),), (), (1, 2), []),
        (((1, 2, 5),), (0, 1), (2,), [5]),
        (((1, 2, 5),), (1, 2), (), [5]),
        (((1, 2, 5),), (), (1, 2), [5]),
        (((1, 2, 5),), (2,), (1,), []),
        (((1, 2, 5),), (), (2,), []),
        (((1, 2, 5), (2, 6)), (9, 1), (2,), [5, 6]),
        (((1, 1, 1),), (1,), (1,), [1]),
    ],
)
def test_bad_words_end_where_their_beginning_was_written(
    words: tuple[tuple[int, ...], ...], prompt: tuple[int, ...], output: tuple[int, ...], expected: list[int]
) -> None:
    assert bad_word_endings(words, prompt, output) == expected
    values = edited([0.0] * 10, SamplingParams(), prompt=prompt, output=output, bad_word_ids=words)
    assert [i for i, v in enumerate(values) if v == -math.inf] == sorted(expected)


def test_ids_beyond_a_smaller_head_are_skipped() -> None:
    params = SamplingParams(
        logit_bias={9: 5.0, 1: 1.0}, repetition_penalty=2.0, frequency_penalty=1.0, min_tokens=9
    )
    values = edited([2.0] * 3, params, prompt=(8, 0), output=(7, 0), end_ids=(6,), bad_word_ids=((5,),))
    assert values == [0.0, 3.0, 2.0]
