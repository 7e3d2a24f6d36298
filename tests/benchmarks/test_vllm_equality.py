"""The comparison of real models on vLLM fails if the draft had no part in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import vllm_equality
from benchmarks.vllm_equality import TEMPERATURES, Text
from tests.vllm.streams import PROMPTS


@pytest.mark.parametrize(("accepted", "code"), [(0.0, 1), (3.0, 0)])
def test_equal_texts_count_only_if_drafted_tokens_were_accepted(
    monkeypatch: pytest.MonkeyPatch, accepted: float, code: int
) -> None:
    texts = [Text(1, [5, 6], [{}, {}])] * len(PROMPTS) * len(TEMPERATURES)

    @contextmanager
    def draft(*_: Any) -> Iterator[str]:
        yield "ipc:///nowhere"

    monkeypatch.setattr(vllm_equality, "draft", draft)
    monkeypatch.setattr(
        vllm_equality, "side", lambda *_: (texts, {"drafted": 2 * accepted, "accepted": accepted})
    )
    monkeypatch.setattr("sys.argv", ["vllm_equality", "--target", "T", "--draft", "D"])
    assert vllm_equality.main() == code
