"""Packed linears: right, and independent of a row's neighbours within a tile."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ssd.attention.inputs import PlainInput
from ssd.config import DType, RunnerConfig
from ssd.models import arithmetic, decoder
from ssd.models.arithmetic import Arithmetic
from ssd.models.int8 import Int8Matrix, rounded
from ssd.models.linear import (
    MakeMatMul,
    MatMul,
    apply_tiled,
    can_pack,
    matmul,
    resolve_precision,
    resolve_target_precision,
)
from ssd.runtime.loading import load_model
from ssd.runtime.runner import forward
from tests.models.rounded import fine_rounded_matmul, rounded_matmul
from tests.tiny import write_checkpoint

CPU = torch.device("cpu")
CLOSE = {torch.bfloat16: 5e-2, torch.float32: 1e-5, torch.float16: 2e-2}
HAS = arithmetic.arithmetic()
needs_int8 = pytest.mark.skipif(HAS.int8_steps is None, reason="int8 linears need AVX-512")
INT8_MATMULS = [pytest.param(make, marks=needs_int8) for make in (rounded_matmul, fine_rounded_matmul)]


def on_a_cpu_with(monkeypatch: pytest.MonkeyPatch, has: Arithmetic) -> None:
    monkeypatch.setattr(arithmetic, "arithmetic", lambda: has)


@pytest.mark.parametrize("rows", [1, 33, 200])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", list(CLOSE))
def test_packed_equals_plain(rows: int, with_bias: bool, dtype: torch.dtype) -> None:
    weight, x = torch.randn(96, 160).to(dtype), torch.randn(rows, 160).to(dtype)
    bias = torch.randn(96).to(dtype) if with_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(
        matmul(weight, bias)(x).double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_are_packed_only_where_that_is_faster(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated bfloat16 is packed for nobody: several rows would cost more than unpacked ones."""
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=False, packs_float32=False, int8_steps=None))
    assert not can_pack(dtype)
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=True, packs_float32=True, int8_steps=127))
    assert can_pack(dtype)
    assert not can_pack(torch.float16)


def unlike(num_rows: int, num_columns: int) -> torch.Tensor:
    """A matrix whose rows differ in size by a factor of 1,000, so that a scale in the wrong place shows."""
    return (
        torch.randn(num_rows, num_columns) * torch.logspace(-2, 1, num_rows)[torch.randperm(num_rows), None]
    )


@needs_int8
@pytest.mark.parametrize("rows", [1, 7, 16, 33, 200])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_int8_is_near_plain(rows: int, with_bias: bool, dtype: torch.dtype) -> None:
    weight, x = unlike(5000, 96).to(dtype), unlike(rows, 96).to(dtype)
    bias = torch.randn(5000).to(dtype) if with_bias else None
    found = rounded_matmul(weight, bias)(x)
    assert found.dtype == dtype
    # What rounding to 1 part in 250 may take of an entry's size; a misplaced scale takes ten times as much.
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    sizes = x.double().norm(dim=1, keepdim=True) * weight.double().norm(dim=1)
    errors = (found.double() - expected).abs()
    assert bool((errors <= 0.01 * sizes + 0.01 * expected.abs()).all())
    if bias is None and rows == 200:  # Truncation instead of rounding shows only on average.
        assert float((errors / sizes).mean()) < (0.00095 if HAS.int8_steps == 127 else 0.0014)


@needs_int8
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_inputs_of_16_bits_leave_the_error_of_the_weights(rows: int, with_bias: bool) -> None:
    weight, x = unlike(500, 96), unlike(rows, 96)
    bias = torch.randn(500) if with_bias else None
    exact = rounded(weight).to_dtype(torch.float64)
    expected = x.double() @ exact.T + (0 if bias is None else bias.double())
    sizes = x.double().norm(dim=1, keepdim=True) * exact.norm(dim=1)
    coarse, fine = (
        float(((make(weight, bias)(x) - expected).abs() / sizes).max())
        for make in (rounded_matmul, fine_rounded_matmul)
    )
    assert fine < 3e-5 < 1e-3 < coarse


@needs_int8
def test_the_largest_int8_input_keeps_its_sign() -> None:
    """A bfloat16 scale that is rounded down must not carry the largest input over the edge of int8."""
    x = torch.zeros(256, 32, dtype=torch.bfloat16)
    x[:, 5] = torch.arange(1, 257).bfloat16() * torch.tensor([1, -1]).repeat(128)
    torch.testing.assert_close(rounded_matmul(torch.eye(32).bfloat16(), None)(x), x, rtol=0.02, atol=0)


@pytest.mark.parametrize("make", INT8_MATMULS)
def test_int8_zeros_stay_zeros_and_strides_do_not_matter(make: MakeMatMul) -> None:
    weight, bias = torch.randn(64, 32).bfloat16(), torch.randn(64).bfloat16()
    weight[3] = 0
    x = torch.randn(32, 8).bfloat16().t()
    x[2] = 0
    found = make(weight, bias)(x)
    assert torch.equal(found[2], bias)
    assert torch.equal(found[:, 3], bias[3].expand(8))
    assert torch.equal(found, make(weight, bias)(x.contiguous()))


@needs_int8
def test_without_vnni_no_sum_of_two_products_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There two products are added in 16 bits: the largest inputs meet the largest weights."""
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=False, packs_float32=True, int8_steps=63))
    weight, x = torch.ones(64, 256), torch.ones(16, 256)
    weight[::2] = -1
    expected = (x @ weight.T).double()
    torch.testing.assert_close(rounded_matmul(weight, None)(x).double(), expected, rtol=1e-2, atol=0)


def test_int8_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=True, packs_float32=True, int8_steps=127))
    assert resolve_precision("model", CPU, torch.float16) == "model"
    with pytest.raises(ValueError, match="use 'auto', 'model' or 'int8'"):
        resolve_precision("int4", CPU, torch.bfloat16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no int8 linears on this cuda"):
        resolve_precision("int8", torch.device("cuda"), torch.bfloat16)
    with pytest.raises(ValueError, match="dtype='auto'"):
        resolve_precision("int8", CPU, torch.float16)
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=False, packs_float32=False, int8_steps=None))
    with pytest.raises(ValueError, match="AVX-512"):
        resolve_precision("int8", CPU, torch.bfloat16)


def test_auto_rounds_drafts_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=False, packs_float32=True, int8_steps=63))
    assert resolve_precision("auto", CPU, torch.float32) == "int8"
    assert resolve_precision("auto", CPU, torch.float16) == "model"
    assert resolve_precision("auto", torch.device("cuda"), torch.bfloat16) == "model"
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=True, packs_float32=False, int8_steps=None))
    assert resolve_precision("auto", CPU, torch.bfloat16) == "model"


def test_auto_rounds_no_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights decide its tokens."""
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=True, packs_float32=True, int8_steps=127))
    assert resolve_target_precision("auto", CPU, torch.bfloat16) == "model"
    assert resolve_target_precision("int8", CPU, torch.float32) == "int8"
    on_a_cpu_with(monkeypatch, Arithmetic(bfloat16=True, packs_float32=True, int8_steps=None))
    with pytest.raises(ValueError, match="AVX-512"):
        resolve_target_precision("int8", CPU, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", [matmul, *INT8_MATMULS])
@pytest.mark.parametrize("num_outputs", [704, 301])
def test_a_row_has_the_same_bits_anywhere_in_its_tile(
    dtype: torch.dtype, make: MakeMatMul, num_outputs: int
) -> None:
    multiply = make(torch.randn(num_outputs, 256).to(dtype), torch.randn(num_outputs).to(dtype))
    x = torch.randn(64, 256).to(dtype)
    order = torch.randperm(64)
    tiles = (16,) * 4
    assert torch.equal(apply_tiled(multiply, x, tiles)[order], apply_tiled(multiply, x[order], tiles))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", INT8_MATMULS)
def test_an_int8_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype, make: MakeMatMul) -> None:
    """Whatever their number and size: integers are added exactly, and each row has its own scale."""
    multiply = make(unlike(301, 250), torch.randn(301).to(dtype))
    x = unlike(200, 250).to(dtype)
    alone = torch.cat([multiply(row) for row in torch.split(x, 1)])
    for num_rows in (2, 5, 16, 128, 200):
        assert torch.equal(torch.cat([multiply(rows) for rows in torch.split(x, num_rows)]), alone)


@needs_int8
def test_every_matrix_is_read_at_the_precision_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []

    def make(weight: Int8Matrix, bias: torch.Tensor | None) -> MatMul:
        assert isinstance(weight, Int8Matrix)
        num_outputs, num_inputs = weight.values.shape
        made.append((num_outputs, num_inputs))
        return matmul(weight, bias)

    monkeypatch.setattr(decoder, "matmul", make)
    config = RunnerConfig(model=str(write_checkpoint("qwen2", tmp_path)), device="cpu", max_model_len=256)
    load_model(replace(config, precision="int8"))
    layer = [(128, 64), (64, 64), (320, 64), (64, 160)]
    assert made == [*layer * 3, (512, 64)]


@needs_int8
@pytest.mark.parametrize("kind", ["medium", "llama-biased", "llama-tied"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_int8_logits_are_near_the_models_own(kind: str, dtype: DType, tmp_path: Path) -> None:
    folder = str(write_checkpoint(kind, tmp_path))
    tokens = [(7 * i) % 390 + 2 for i in range(100)]
    row = PlainInput(tokens, 0, list(range(7)), 100, generated=False)
    config = RunnerConfig(model=folder, device="cpu", dtype=dtype, max_model_len=256)
    plain, rounded = (
        forward(load_model(replace(config, precision=p)).runner, [row]) for p in ("model", "int8")
    )
    assert not torch.equal(plain, rounded)
    assert float((rounded - plain).norm()) < 0.25 * float(plain.norm())


@pytest.mark.parametrize("kind", ["medium", "llama3", "qwen3"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_bfloat16_logits_are_near_transformers(kind: str, deterministic: bool, tmp_path: Path) -> None:
    """The default path: no further from float32 than transformers' own bfloat16 is."""
    folder = write_checkpoint(kind, tmp_path)
    config = RunnerConfig(model=str(folder), device="cpu", dtype="bfloat16", deterministic=deterministic)
    loaded = load_model(replace(config, max_model_len=256, num_blocks=16))
    tokens = [(7 * i) % 390 + 2 for i in range(100)]
    ours = forward(loaded.runner, [PlainInput(tokens, 0, list(range(7)), 100, generated=False)])
    with torch.inference_mode():
        exact, theirs = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)(torch.tensor([tokens]))
            .logits[0]
            .float()
            for dtype in (torch.float32, torch.bfloat16)
        )
    assert float((ours - exact).norm()) < 1.2 * float((theirs - exact).norm())
