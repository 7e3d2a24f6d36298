"""A target in int8: rounded weights define its tokens; no mode, batch, tree or number of threads does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from campaigns.e2e.invariance import load
from campaigns.e2e.process_faults import Slow
from campaigns.e2e.trees import CIRCUMSTANCES, Bench, compare
from ssd import LLM, SamplingParams
from tests.e2e.test_invariance import assert_invariant, assert_rows_alone_equal_rows_together
from tests.e2e.test_trees import check
from tests.models.test_linear import needs_int8

pytestmark = needs_int8
PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"]
INT8: dict[str, Any] = {"device": "cpu", "deterministic": True, "show_progress": False, "precision": "int8"}


def texts(model: Path, max_tokens: int = 32, **settings: Any) -> list[Any]:
    """Tokens with their log-probabilities: a difference in the last bit shows."""
    params = [
        SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=1),
        SamplingParams(
            temperature=0.8, seed=3, max_tokens=max_tokens, repetition_penalty=1.2, top_p=0.9, logprobs=1
        ),
        SamplingParams(temperature=1.0, seed=5, max_tokens=max_tokens, n=2, min_tokens=5),
    ]
    with LLM(str(model), **{**INT8, **settings}) as llm:
        decoder: Any = llm._engine.core.decoder
        if settings.get("mode") == "ssd":
            decoder._runner = Slow(decoder._runner)
        found = llm.generate(PROMPTS, params, use_tqdm=False)
        drafted = llm.stats.speculation.drafted
    # Otherwise nothing was verified.
    assert (drafted > 5) == ("draft" in settings)
    return [[(each.token_ids, each.logprobs) for each in output.outputs] for output in found]


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_all_modes_have_the_same_bits(target: Path, drafts: dict[str, Path], dtype: str) -> None:
    expected = texts(target, dtype=dtype)
    draft = {"model": str(drafts["cut"]), "dtype": dtype}
    assert texts(target, dtype=dtype, draft=draft, mode="sd") == expected
    assert texts(target, dtype=dtype, draft=draft, mode="ssd") == expected
    assert texts(target, dtype=dtype, draft=draft, mode="ssd", enable_trees=False) == expected
    # Or the precision would have no effect.
    assert texts(target, dtype=dtype, precision="model") != expected


@pytest.mark.models
def test_all_modes_of_a_gguf_file(shallow_smollm2: Path) -> None:
    draft = str(shallow_smollm2)
    expected = texts(shallow_smollm2, 6)
    assert texts(shallow_smollm2, 6, draft=draft, mode="sd") == expected
    assert texts(shallow_smollm2, 6, draft=draft, mode="ssd") == expected


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_circumstances(target: Path, dtype: str) -> None:
    loaded = load(str(target), deterministic=True, dtype=dtype, precision="int8")
    assert_invariant(loaded, num_requests=16, max_tokens=8)


@pytest.mark.parametrize("num_threads", [2, 3])
def test_several_threads(target: Path, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    assert_rows_alone_equal_rows_together(load(str(target), deterministic=True, precision="int8"))


def test_trees(target: Path) -> None:
    bench = Bench(str(target), deterministic=True, precision="int8")
    check(dict(compare(bench, 12, 12, CIRCUMSTANCES)))
