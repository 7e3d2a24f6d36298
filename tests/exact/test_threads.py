"""Deterministic mode: bits depend neither on other rows, nor on the number of threads, nor on the mode."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd import LLM, SamplingParams
from ssd.attention.inputs import PlainInput
from ssd.models import decoder
from ssd.models.int8 import Int8Matrix
from ssd.models.linear import MatMul, Matrix
from ssd.runtime.runner import forward
from tests.e2e.shallow_gguf import first_layers
from tests.exact.engine import TargetWithDrafts
from tests.exact.rows import Row
from tests.exact.run import Exact
from tests.models.test_linear import HAS
from tests.models.threads import sums_by_threads
from tests.tiny import write_checkpoint

PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"] * 3


def texts(model: Path, **settings: Any) -> list[Any]:
    """By the calls that a user makes; log-probabilities show a difference in the last bit."""
    params = [
        SamplingParams(temperature=temperature, seed=4 + index, max_tokens=24, ignore_eos=True, logprobs=1)
        for index, temperature in enumerate((0.0, 1.0, 1.0))
    ]
    with LLM(str(model), device="cpu", dtype="float32", show_progress=False, **settings) as llm:
        found = llm.generate(PROMPTS, params * 3, use_tqdm=False)
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in found]


def of_any_matrix(weight: Matrix, bias: Tensor | None) -> MatMul:
    """A multiply that depends on the number of threads on every CPU, as some libraries' do on some CPUs."""
    return sums_by_threads(weight.to_dtype(torch.float32) if isinstance(weight, Int8Matrix) else weight, bias)


def test_texts_depend_on_no_mode_and_no_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "matmul", of_any_matrix)
    model, before = write_checkpoint("medium", tmp_path), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected, loose = texts(model, deterministic=True), texts(model)
        torch.set_num_threads(2)
        # Or the comparison could not fail.
        assert texts(model) != loose
        assert texts(model, deterministic=True) == expected
        assert texts(model, deterministic=True, draft=str(model), mode="sd") == expected
        assert texts(model, deterministic=True, draft=str(model), mode="ssd") == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_rows_alone_equal_rows_together(weights: str, tmp_path: Path) -> None:
    """Threads share out rows, heads and elements, three of them unevenly; none of that may show."""
    if weights == "int8" and HAS.int8_steps is None:
        pytest.skip("int8 linears need AVX-512")
    runner = TargetWithDrafts(weights, tmp_path).loaded.runner
    rows = [PlainInput([3 + i, 5, 7 * i % 200], 0, [i], 3, generated=bool(i % 2)) for i in range(40)]
    alone = torch.cat([forward(runner, [row]) for row in rows])
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        assert torch.equal(forward(runner, rows), alone)


@pytest.mark.models
@pytest.mark.parametrize(
    ("num_layers", "mode", "draft"),
    [
        (4, "ssd", "good"),
        *(pytest.param(30, "sd", each, marks=pytest.mark.slow) for each in ("good", "hostile")),
    ],
)
def test_real_weights(smollm2: Path, num_layers: int, mode: str, draft: str, tmp_path: Path) -> None:
    """Layers of a GGUF file, in the precision that this machine takes for it."""
    target = first_layers(smollm2, num_layers, tmp_path / smollm2.name)
    exact = Exact(TargetWithDrafts("int8" if HAS.int8_steps is not None else "bfloat16", tmp_path, target))
    wanted = (mode, draft, "none", 1, True)
    row = next(
        row
        for row in map(Row.drawn, range(5_000))
        if (row.mode, row.draft, row.draft_fault, row.batch, row.tree) == wanted
    )
    ran = exact.run(row)
    assert (row, ran.faults) == (row, [])
    assert ran.seen.accepted > 0
