"""The self-test's comparison of kernels with torch, interpreted; and a start without kernels that fail."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ssd.attention.choice import captured_backend, eager_backend
from ssd.attention.sdpa import SdpaBackend
from ssd.config import RunnerConfig
from ssd.kernels import language
from ssd.kernels.kv import move
from ssd.runtime import loading
from ssd.selftest import kernels
from tests.kernels.test_choice import pool_on

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def kernels_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_left_to_torch", set())


def test_all_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter is a thousand times slower than a GPU.
    monkeypatch.setattr(kernels, "_TEXT", 40)
    monkeypatch.setattr(kernels, "_VOCAB", 1100)
    found = list(kernels.kernel_results(CPU))
    assert [each.what for each in found] == [
        "attention, rope, norm, kv",
        "move",
        "decide",
        "floors",
        "children",
    ]
    assert [each for each in found if each.verdict != "ok"] == []


def test_a_kernel_that_differs_or_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(*_: Any) -> None:
        raise RuntimeError("ptxas was not found")

    def another_token(logits: Tensor, *_: Any) -> Tensor:
        return logits.argmin(1)

    monkeypatch.setattr(kernels, "move_kv", raised)
    monkeypatch.setattr(kernels, "decide_rows", another_token)
    monkeypatch.setattr(kernels, "_forward_gap", lambda device: 1e-2)
    found = {each.what: each for each in kernels.compared(CPU)}
    assert {name for name, each in found.items() if each.is_failure} == {
        "attention, rope, norm, kv", "move", "decide",
    }  # fmt: skip
    assert found["move"].found == "RuntimeError: ptxas was not found"
    assert found["decide"].found.startswith("differ from torch by 5.0e+00")


def triton_error() -> Exception:
    """As the compiler or the driver raises it: from a frame of Triton."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        move[(1,)](no_such_argument=1)
    return caught.value


def test_without_kernels_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "INTERPRETS", False)
    error = triton_error()
    assert not language.leave_to_torch(GPU, ValueError("of something else"))
    assert not language.leave_to_torch(CPU, error)
    assert language.can_launch(GPU)
    assert language.leave_to_torch(GPU, error)
    assert not language.can_launch(GPU)
    assert isinstance(eager_backend(pool_on("cuda"), 8, deterministic=False), SdpaBackend)
    assert captured_backend(pool_on("cuda"), 8) is None
    assert not language.leave_to_torch(GPU, error), "nothing is left to try"


def test_a_model_whose_kernels_fail_is_loaded_again_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(language, "INTERPRETS", False)
    monkeypatch.setattr(loading, "resolve_device", lambda name: GPU)
    error, could = triton_error(), list[bool]()

    def load(device: torch.device, *_: Any) -> str:
        could.append(language.can_launch(device))
        if could[-1]:
            raise error
        return "loaded"

    monkeypatch.setattr(loading, "_load_on", load)
    config = RunnerConfig(model="model")
    assert str(loading.load_model(config)) == "loaded"
    assert could == [True, False]
    (line,) = caplog.records
    assert "our kernels fail on cuda, so torch computes everything" in line.getMessage()

    def broken(*_: Any) -> None:
        raise ValueError("the file is broken")

    monkeypatch.setattr(loading, "_load_on", broken)
    with pytest.raises(ValueError, match="the file is broken"):
        loading.load_model(config)
