"""What arithmetic this CPU has, as torch and oneDNN will use it: the one place that asks.

Knows instructions. Which number format follows from them was measured once, by forwards of 1 to 128 rows
(docs/performance.md, `benchmarks/linears.py`), and is not timed at each start: a noisy machine would choose
otherwise from one start to the next, and with the format a model's near-ties change.
"""

import os
from dataclasses import dataclass

import torch

_WITHOUT_AVX512 = frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"})
_WITHOUT_VNNI = _WITHOUT_AVX512 | {"AVX512_CORE"}
_WITHOUT_BFLOAT16 = _WITHOUT_VNNI | {"AVX512_CORE_VNNI"}
"""Values of ONEDNN_MAX_CPU_ISA that hide these instructions from oneDNN."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    bfloat16: bool
    """bfloat16 products by instruction. Without it they are emulated: one row costs what it costs to read
    the weights, and every further row as much again."""
    packs_float32: bool
    """oneDNN's packed float32 linears: with AVX-512 up to eight rows cost about what one costs."""
    int8_steps: int | None
    """Steps on either side of zero that a weight may be rounded to; None: no int8 linears worth the name.

    Without VNNI two products are added in 16 bits: with 63 steps for weights they cannot overflow."""


def arithmetic() -> Arithmetic:
    """Of the CPU this process runs on. Tests replace it."""
    hidden = _hidden_from_onednn()
    has_avx512 = torch.cpu._is_avx512_supported() and hidden not in _WITHOUT_AVX512
    has_vnni = torch.cpu._is_vnni_supported() and hidden not in _WITHOUT_VNNI
    return Arithmetic(
        bfloat16=_has_bfloat16() and hidden not in _WITHOUT_BFLOAT16,
        packs_float32=torch.cpu._is_avx2_supported() and _has_operators(torch.ops.mkldnn, *_PACKED_LINEAR),
        int8_steps=(127 if has_vnni else 63)
        if has_avx512 and _has_operators(torch.ops.onednn, *_INT8_LINEAR)
        else None,
    )


_PACKED_LINEAR = ("_reorder_linear_weight", "_linear_pointwise")
_INT8_LINEAR = ("qlinear_prepack", "qlinear_pointwise")


def _has_bfloat16() -> bool:
    if not _has_operators(torch.ops.mkldnn, *_PACKED_LINEAR, "_is_mkldnn_bf16_supported"):
        return False
    # On x86 oneDNN calls bfloat16 supported where it can emulate it.
    is_x86 = torch.cpu._is_avx2_supported()
    return bool(
        torch.cpu._is_avx512_bf16_supported() if is_x86 else torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _has_operators(namespace: object, *names: str) -> bool:
    return torch.backends.mkldnn.is_available() and all(  # type: ignore[no-untyped-call]
        hasattr(namespace, name) for name in names
    )


def _hidden_from_onednn() -> str:
    """oneDNN reads this variable itself, so what it says is what will be computed with."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
