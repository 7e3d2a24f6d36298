"""Triton's interpreter keeps bfloat16 as its bits, and multiplies these without a word. Here it does not.

Products convert to float32 first, and casts round to nearest; nothing else in the kernels computes in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def _wide(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << 16
    return TensorHandle(bits.view(np.float32), tl.float32)


def _narrow(data: Any) -> Any:
    rounded = torch.from_numpy(np.ascontiguousarray(data)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)


@contextmanager
def bfloat16_computes() -> Iterator[None]:
    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def wide_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _wide(a), _wide(b), *rest)

    def rounding_cast(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16 and src.dtype.scalar == tl.float32:
            return TensorHandle(_narrow(src.data), tl.bfloat16)
        return (
            cast(self, _wide(src), dst_type) if dst_type.scalar != tl.bfloat16 else cast(self, src, dst_type)
        )

    with (
        patch.object(InterpreterBuilder, "create_dot", wide_dot),
        patch.object(InterpreterBuilder, "cast_impl", rounding_cast),
    ):
        yield
