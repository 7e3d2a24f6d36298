"""Imports Triton if it is installed. Without it, kernels can be imported but not launched.

Triton decides when a kernel is defined whether to compile it for a device or to interpret it on the CPU. To
use the interpreter, set TRITON_INTERPRET=1 before importing this package. Does not know any kernel.
"""

import traceback
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

__all__ = ["INTERPRETS", "can_launch", "is_hip", "jit", "launching_on", "leave_to_torch", "tl"]

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
    if triton is None or device.type in _left_to_torch:
        return False
    return device.type == ("cpu" if INTERPRETS else "cuda")


_left_to_torch: set[str] = set()
"""Types of devices that no kernel is launched on any more in this process."""


def leave_to_torch(device: torch.device, error: Exception) -> bool:
    """Stops launching kernels on this type of device if the error comes from Triton (compiler or launch).

    False if it comes from elsewhere, or if no kernel could be launched before.
    """
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if not can_launch(device) or not any(each.split(".")[0] == "triton" for each in modules):
        return False
    _left_to_torch.add(device.type)
    return True


def launching_on(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's device the current one, where Triton launches kernels."""
    context: AbstractContextManager[object] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return context


def is_hip() -> bool:
    """Whether kernels are compiled for AMD's devices."""
    return triton is not None and not INTERPRETS and _target().backend == "hip"


def _target() -> Any:
    return triton.runtime.driver.active.get_current_target()
