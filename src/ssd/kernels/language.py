"""Imports Triton if it is installed. Without it, kernels can be imported but not launched.

Triton decides when a kernel is defined whether to compile it for a device or to interpret it on the CPU. To
use the interpreter, set TRITON_INTERPRET=1 before importing this package. Does not know any kernel.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    # Signatures use constexpr; the rest of the language is used in launches only.
    triton, tl = None, SimpleNamespace(constexpr=None)

__all__ = ["INTERPRETS", "can_launch", "is_hip", "jit", "launching_on", "tl"]

INTERPRETS = triton is not None and bool(triton.knobs.runtime.interpret)
"""Kernels run on the CPU, in numpy. For tests only: it is about a thousand times slower."""


def jit(*, do_not_specialize: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Like `triton.jit`. Arguments in `do_not_specialize` are not compiled again for other values."""
    if triton is None:
        return lambda function: function

    def decorate(function: Callable[..., Any]) -> Any:
        return triton.jit(function, do_not_specialize=list(do_not_specialize))

    return decorate


def can_launch(device: torch.device) -> bool:
    """Whether kernels run on this device. ROCm devices have the type cuda too."""
    return triton is not None and (device.type == "cpu" if INTERPRETS else device.type == "cuda")


def launching_on(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's device the current one, where Triton launches kernels."""
    context: AbstractContextManager[object] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return context


def is_hip() -> bool:
    """Whether kernels are compiled for AMD's devices."""
    return triton is not None and not INTERPRETS and _target().backend == "hip"


def _target() -> Any:
    return triton.runtime.driver.active.get_current_target()
