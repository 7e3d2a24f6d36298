"""Triton where it is installed. Without it every kernel can be imported, and none launched.

Triton decides at a kernel's definition whether it is compiled for a device or interpreted on the CPU: whoever
wants the interpreter sets TRITON_INTERPRET=1 before this package is imported. Knows no kernel.
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
    # Signatures name it; nothing else of the language is looked at before a launch.
    triton, tl = None, SimpleNamespace(constexpr=None)

__all__ = ["INTERPRETS", "can_launch", "is_hip", "jit", "launching_on", "tl"]

INTERPRETS = triton is not None and bool(triton.knobs.runtime.interpret)
"""Kernels run on the CPU, in numpy: for tests, a thousand times too slow for anything else."""


def jit(*, do_not_specialize: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """A function of Triton's language. Of what is not specialised each value is served by one compilation."""
    if triton is None:
        return lambda function: function

    def decorate(function: Callable[..., Any]) -> Any:
        return triton.jit(function, do_not_specialize=list(do_not_specialize))

    return decorate


def can_launch(device: torch.device) -> bool:
    """Whether kernels run where tensors of this device lie. ROCm's devices call themselves cuda too."""
    return triton is not None and (device.type == "cpu" if INTERPRETS else device.type == "cuda")


def launching_on(tensor: Tensor) -> AbstractContextManager[object]:
    """Kernels go where this tensor lies: Triton launches them on the thread's current device."""
    context: AbstractContextManager[object] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return context


def is_hip() -> bool:
    """Whether kernels are compiled for AMD's devices."""
    return triton is not None and not INTERPRETS and _target().backend == "hip"


def _target() -> Any:
    return triton.runtime.driver.active.get_current_target()
