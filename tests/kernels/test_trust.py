"""A kernel that fails against its torch form is left to torch, before a model's first step."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd.attention.choice import eager_backend
from ssd.attention.fused import FusedBackend
from ssd.attention.sdpa import SdpaBackend
from ssd.kernels import language, rows, trust
from ssd.kernels.trust import leave_to_torch, may_run
from ssd.kvcache.pool import PoolShape
from ssd.models.row_math import RowMath, row_math_on
from ssd.runtime import kernel_checks
from ssd.runtime.decision import FusedDecision, decision_on
from ssd.runtime.kernel_checks import (
    AttentionCase,
    CaseSequence,
    LogitsCase,
    RowsCase,
    cases_of,
    check_kernels,
    leave_failing_kernels_to_torch,
)
from ssd.sampling import CoupledDecision, Draws
from ssd.selftest.made_up import MadeUpShape
from tests.kernels.test_choice import pool_on

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL = (
    AttentionCase(2, 1, 16, torch.float32, (CaseSequence(5, 2),)),
    LogitsCase(2, 300),
    RowsCase(2, 20, 30, torch.float32),
)


@pytest.fixture(autouse=True)
def nothing_failed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_failed", set())


def test_kernels_that_agree_stay(caplog: pytest.LogCaptureFixture) -> None:
    assert leave_failing_kernels_to_torch(CPU, check_kernels(CPU, SMALL)) == frozenset()
    assert not caplog.records
    assert all(may_run(kernel, CPU) for kernel in ("attention", "norm", "silu", "move", "decide", "children"))


def test_what_differs_or_raises_is_replaced_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def another_token(logits: Tensor, *_: Any) -> Tensor:
        return logits.argmin(1)

    def refused(*_: Any) -> None:
        raise RuntimeError("ptxas was not found")

    monkeypatch.setattr(kernel_checks, "decide_rows", another_token)
    monkeypatch.setattr(kernel_checks, "move_kv", refused)
    with caplog.at_level(logging.WARNING):
        assert leave_failing_kernels_to_torch(CPU, check_kernels(CPU, SMALL)) == {"decide", "move"}
    said = " ".join(each.getMessage() for each in caplog.records)
    assert "kernel decide is replaced by its torch form on cpu: differs by" in said
    assert "kernel move is replaced by its torch form on cpu: RuntimeError: ptxas was not found" in said
    assert [
        may_run(kernel, CPU) for kernel in ("attention", "norm", "silu", "move", "decide", "children")
    ] == [
        True,
        True,
        True,
        False,
        False,
        True,
    ]


def test_whoever_computes_then_takes_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "INTERPRETS", False)
    monkeypatch.setattr(CoupledDecision, "on", lambda decision, device: decision)
    drawn = CoupledDecision(Draws(torch.tensor([5]), torch.tensor([1]), torch.tensor([0.8])))
    leave_to_torch("attention", GPU)
    assert isinstance(eager_backend(pool_on("cuda"), 8, deterministic=False), SdpaBackend)
    assert isinstance(decision_on(GPU, drawn), FusedDecision)
    leave_to_torch("decide", GPU)
    assert isinstance(decision_on(GPU, drawn), CoupledDecision)
    monkeypatch.setattr(trust, "_failed", set())
    assert isinstance(eager_backend(pool_on("cuda"), 8, deterministic=False), FusedBackend)


@pytest.mark.parametrize("failing", ["norm", "silu"])
def test_a_decoder_takes_torch_for_what_failed(
    failing: trust.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "INTERPRETS", False)
    assert row_math_on(GPU) == RowMath(rows.add_norm, rows.silu_mul)
    leave_to_torch(failing, GPU)
    of_torch, found = row_math_on(CPU), row_math_on(GPU)
    assert (found.add_norm == of_torch.add_norm) is (failing == "norm")
    assert (found.silu_mul == of_torch.silu_mul) is (failing == "silu")


def test_a_model_tries_its_own_shapes() -> None:
    shape = PoolShape(2, 2, 64, 8, 16, torch.float16, CPU, 64, num_trees=2)
    config = MadeUpShape(2, 96, 160, heads=8, kv_heads=2, vocab=1000, head_dim=64).config
    texts, *words, between = cases_of(shape, config, deterministic=False)
    assert isinstance(texts, AttentionCase)
    assert (texts.num_heads, texts.num_kv_heads, texts.head_dim, texts.page) == (8, 2, 64, 16)
    assert any(part.grown is not None for part in texts.sequences)
    assert all(isinstance(each, LogitsCase) and each.vocab_size == 1000 for each in words)
    assert between == RowsCase(5, 96, 160, torch.float16)
    fixed = cases_of(shape, config, deterministic=True)[0]
    assert isinstance(fixed, AttentionCase)
    assert fixed.deterministic
    assert all(part.grown is None for part in fixed.sequences)
