"""Packed linears: right, flat in rows, and independent of a row's neighbours within a tile."""

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ssd.models.linear import apply_tiled, can_pack, matmul
from ssd.runtime.runner import RunnerRow
from tests.e2e.invariance import load
from tests.tiny import write_checkpoint


@pytest.mark.parametrize("rows", [1, 7, 16, 33, 200])
@pytest.mark.parametrize("with_bias", [True, False])
def test_packed_equals_plain(rows: int, with_bias: bool) -> None:
    weight, x = torch.randn(96, 160).bfloat16(), torch.randn(rows, 160).bfloat16()
    bias = torch.randn(96).bfloat16() if with_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(matmul(weight, bias)(x).double(), expected, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_has_the_same_bits_anywhere_in_its_tile(dtype: torch.dtype) -> None:
    multiply = matmul(torch.randn(704, 256).to(dtype), None)
    x = torch.randn(64, 256).to(dtype)
    order = torch.randperm(64)
    tiles = (16,) * 4
    assert torch.equal(apply_tiled(multiply, x, tiles)[order], apply_tiled(multiply, x[order], tiles))


@pytest.mark.skipif(not can_pack(), reason="no packed bfloat16 linears here")
def test_eight_rows_cost_about_what_one_row_costs() -> None:
    """bench/engine_speed.py measures the figure; here only that packing happened: unpacked it is 2 to 8."""
    multiply = matmul(torch.randn(8960, 1536).bfloat16(), None)

    def best(rows: int) -> float:
        x = torch.randn(rows, 1536).bfloat16()
        times = []
        for _ in range(30):
            started = time.perf_counter()
            multiply(x)
            times.append(time.perf_counter() - started)
        return min(times)

    best(1)
    assert best(8) < 1.8 * best(1)


@pytest.mark.parametrize("kind", ["medium", "llama3", "qwen3"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_bfloat16_logits_are_near_transformers(kind: str, deterministic: bool, tmp_path: Path) -> None:
    """The default path: no further from float32 than transformers' own bfloat16 is."""
    folder = write_checkpoint(kind, tmp_path)
    loaded = load(str(folder), deterministic=deterministic, dtype="bfloat16")
    tokens = [(7 * i) % 390 + 2 for i in range(100)]
    ours = loaded.runner.forward([RunnerRow(tokens, 0, list(range(7)), 100, generated=False)])
    with torch.inference_mode():
        exact, theirs = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)(torch.tensor([tokens]))
            .logits[0]
            .float()
            for dtype in (torch.float32, torch.bfloat16)
        )
    assert float((ours - exact).norm()) < 1.2 * float((theirs - exact).norm())
