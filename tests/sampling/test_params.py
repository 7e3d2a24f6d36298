"""SamplingParams: defaults, normal forms, and every bound, from both sides."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ssd.sampling import SamplingParams

ACCEPTED: list[tuple[str, Any]] = [
    ("temperature", 0),
    ("temperature", 1000.0),
    ("top_k", -1),
    ("top_k", 10**9),
    ("top_p", 1),
    ("top_p", 1e-9),
    ("min_p", 0),
    ("min_p", 1.0),
    ("repetition_penalty", 0.01),
    ("repetition_penalty", 100.0),
    ("presence_penalty", -2.0),
    ("frequency_penalty", 2.0),
    ("logit_bias", {0: 100, 5: -100.0}),
    ("logit_bias", dict.fromkeys(range(1024), 0.0)),
    ("bad_words", ["x"] * 256),
    ("seed", -(10**30)),
    ("stop", ["a" * 256] * 16),
    ("stop", None),
    ("stop_token_ids", list(range(64))),
    ("min_tokens", 16),
    ("max_tokens", 1),
    ("max_tokens", None),
    ("n", 128),
    ("logprobs", 0),
    ("logprobs", 20),
    ("prompt_logprobs", 20),
]

REFUSED: list[tuple[str, Any]] = [
    *[
        (name, value)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        for value in (math.nan, math.inf, -math.inf, True, "1", None)
    ],
    *[
        (name, value)
        for name in ("top_k", "seed", "min_tokens", "max_tokens", "n", "logprobs", "prompt_logprobs")
        for value in (True, 1.0, "1", math.nan)
    ],
    *[(name, 1) for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")],
    ("temperature", -0.1),
    ("temperature", 1000.1),
    ("top_k", -2),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 101),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("logit_bias", dict.fromkeys(range(1025), 0.0)),
    ("logit_bias", {0: 100.1}),
    ("logit_bias", {0: math.nan}),
    ("logit_bias", {0: -math.inf}),
    ("logit_bias", {-1: 0.0}),
    ("logit_bias", {"0": 0.0}),
    ("logit_bias", {True: 0.0}),
    ("logit_bias", [1, 2]),
    ("logit_bias", "12"),
    ("bad_words", ["x"] * 257),
    ("bad_words", [""]),
    ("bad_words", ["x" * 257]),
    ("bad_words", [3]),
    ("stop", ["a"] * 17),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", "a" * 257),
    ("stop", b"bytes"),
    ("stop", [1]),
    ("stop_token_ids", list(range(65))),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", [1.0]),
    ("stop_token_ids", "12"),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("max_tokens", 0),
    ("n", 0),
    ("n", 129),
    ("logprobs", -1),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
]


def params(name: str, value: Any) -> SamplingParams:
    return SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_accepts_the_edge(name: str, value: Any) -> None:
    params(name, value)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refuses_beyond_the_edge_and_says_why(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=.* is refused: \w+"):
        params(name, value)


def test_a_refusal_stays_short_whatever_was_passed() -> None:
    with pytest.raises(ValueError, match="stop=") as caught:
        SamplingParams(stop=["a" * 10_000])
    assert len(str(caught.value)) < 250


def test_defaults() -> None:
    default = SamplingParams()
    assert default.max_tokens == 16
    assert not default.greedy
    assert not default.penalised
    assert not default.truncated
    assert default.stop == ()
    assert default.bias == ()


def test_normal_forms() -> None:
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(temperature=1e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[3, 1]).stop_token_ids == (3, 1)
    assert SamplingParams(bad_words=["no"]).bad_words == ("no",)
    assert SamplingParams(seed=-1).seed == 2**64 - 1
    assert SamplingParams(seed=2**64 + 5).seed == 5
    assert SamplingParams(logit_bias={7: 1, 2: -1}).bias == ((2, -1.0), (7, 1.0))


def test_each_penalty_and_each_truncation_counts_as_one() -> None:
    for name, value in (("repetition_penalty", 1.1), ("presence_penalty", 0.1), ("frequency_penalty", -0.1)):
        assert params(name, value).penalised
    for name, value in (("min_p", 0.1), ("top_k", 1), ("top_p", 0.9)):
        assert params(name, value).truncated


def test_is_immutable_hashable_and_can_be_replaced() -> None:
    bias = {1: 2.0}
    original = SamplingParams(logit_bias=bias, stop=["x"], stop_token_ids=[4])
    bias[1] = 50.0
    assert original.bias == ((1, 2.0),)
    assert hash(original) == hash(SamplingParams(logit_bias={1: 2.0}, stop="x", stop_token_ids=(4,)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        original.top_k = 3  # type: ignore[misc]
    changed = dataclasses.replace(original, n=2)
    assert changed.n == 2
    assert changed.bias == original.bias


def test_token_ids_are_checked_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[9]).check_vocabulary(10)
    with pytest.raises(ValueError, match=r"logit_bias=10 .*vocabulary size, 10"):
        SamplingParams(logit_bias={10: 1.0}).check_vocabulary(10)
    with pytest.raises(ValueError, match=r"stop_token_ids=12 .*vocabulary size, 10"):
        SamplingParams(stop_token_ids=[1, 12]).check_vocabulary(10)
