"""What `auto` means here, and refusals that say what to do."""

import pytest
import torch

from ssd.models import arithmetic
from ssd.models.arithmetic import Arithmetic
from ssd.runtime.host import resolve_device, resolve_dtype


def test_auto_device_is_one_that_torch_has() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_missing_cuda_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device='cpu'"):
        resolve_device("cuda:1")


def test_nonsense_device_is_refused() -> None:
    with pytest.raises(ValueError, match="use 'auto'"):
        resolve_device("abacus")


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16, float16, float32"):
        resolve_dtype("int3", torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bfloat16", "declared", "expected"),
    [
        (True, None, torch.bfloat16),
        (True, "bfloat16", torch.bfloat16),
        (True, "float32", torch.bfloat16),
        (True, "float16", torch.float32),
        (False, None, torch.float32),
        (False, "bfloat16", torch.float32),
    ],
)
def test_auto_dtype_follows_cpu_and_checkpoint(
    bfloat16: bool, declared: str | None, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = Arithmetic(bfloat16=bfloat16, packs_float32=True, int8_steps=None)
    monkeypatch.setattr(arithmetic, "arithmetic", lambda: has)
    assert resolve_dtype("auto", torch.device("cpu"), declared) == expected
    assert resolve_dtype("bfloat16", torch.device("cpu"), declared) == torch.bfloat16


@pytest.mark.parametrize(
    ("bfloat16", "declared", "expected"),
    [
        (True, "bfloat16", torch.bfloat16),
        (True, "float16", torch.float16),
        (False, "bfloat16", torch.float16),
    ],
)
def test_auto_dtype_on_a_gpu(
    bfloat16: bool, declared: str, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16)
    assert resolve_dtype("auto", torch.device("cuda"), declared) == expected
