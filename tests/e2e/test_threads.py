"""Deterministic mode by the constructor calls that a user makes first: AR, SD and SSD have the same tokens.

A mode changes how many threads compute the target. The multiply of this test depends on their number on every
CPU, as those of some libraries do on some CPUs.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd import LLM, SamplingParams
from ssd.models import decoder
from ssd.models.int8 import Int8Matrix
from ssd.models.linear import MatMul, Matrix
from tests.models.threads import sums_by_threads
from tests.tiny import write_checkpoint

PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"] * 3


def texts(model: Path, **settings: Any) -> list[Any]:
    """Tokens with their log-probabilities: a difference in the last bit shows."""
    params = [
        SamplingParams(temperature=temperature, seed=4 + index, max_tokens=24, ignore_eos=True, logprobs=1)
        for index, temperature in enumerate((0.0, 1.0, 1.0))
    ]
    with LLM(str(model), device="cpu", dtype="float32", show_progress=False, **settings) as llm:
        found = llm.generate(PROMPTS, params * 3, use_tqdm=False)
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in found]


def of_any_matrix(weight: Matrix, bias: Tensor | None) -> MatMul:
    return sums_by_threads(weight.to_dtype(torch.float32) if isinstance(weight, Int8Matrix) else weight, bias)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(decoder, "matmul", of_any_matrix)
    return write_checkpoint("medium", tmp_path)


def test_texts_depend_on_no_mode_and_no_number_of_threads(model: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected, loose = texts(model, deterministic=True), texts(model)
        torch.set_num_threads(4)
        assert texts(model, deterministic=True) == expected
        torch.set_num_threads(2)
        # Or the comparison could not fail.
        assert texts(model) != loose
        assert texts(model, deterministic=True) == expected
        assert texts(model, deterministic=True, draft=str(model), mode="sd") == expected
        assert texts(model, deterministic=True, draft=str(model), mode="ssd") == expected
    finally:
        torch.set_num_threads(before)
