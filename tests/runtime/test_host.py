"""What `auto` means here, and refusals that say what to do."""

import pytest
import torch

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
