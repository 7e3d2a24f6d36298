"""Detects which arithmetic torch and oneDNN can use on this CPU.

Knows instruction sets. The number formats that follow from them were chosen by measuring forwards of 1 to
128 rows (benchmarks/RESULTS.md). They are not timed at startup: timing noise could
change the format between starts, and with the format a model's near-ties change.
"""

import os
from dataclasses import dataclass

import torch

_WITHOUT_AVX512 = frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"})
_WITHOUT_VNNI = _WITHOUT_AVX512 | {"AVX512_CORE"}
_WITHOUT_BFLOAT16 = _WITHOUT_VNNI | {"AVX512_CORE_VNNI"}
"""Values of ONEDNN_MAX_CPU_ISA that hide these instructions from oneDNN."""

ALL_INT8_STEPS, INT8_STEPS_WITHOUT_VNNI = 127, 63


@dataclass(frozen=True, slots=True)
class Arithmetic:
    bfloat16: bool
    """The CPU has bfloat16 instructions. If they are emulated, a forward's time grows with every row."""
    packs_float32: bool
    """oneDNN has packed float32 linears: with AVX-512 up to eight rows take about as long as one."""
    int8_steps: int | None
    """Largest absolute value of a rounded weight; None: no fast int8 linears.

    Without VNNI two products are added in 16 bits; weights up to 63 cannot overflow."""


def arithmetic() -> Arithmetic:
    """The arithmetic of the CPU that runs this process. Tests replace this function."""
    hidden = _hidden_from_onednn()
    has_avx512 = torch.cpu._is_avx512_supported() and hidden not in _WITHOUT_AVX512
    has_vnni = torch.cpu._is_vnni_supported() and hidden not in _WITHOUT_VNNI
    return Arithmetic(
        bfloat16=_has_bfloat16() and hidden not in _WITHOUT_BFLOAT16,
        packs_float32=torch.cpu._is_avx2_supported() and _has_operators(torch.ops.mkldnn, *_PACKED_LINEAR),
        int8_steps=(ALL_INT8_STEPS if has_vnni else INT8_STEPS_WITHOUT_VNNI)
        if has_avx512 and _has_operators(torch.ops.onednn, *_INT8_LINEAR)
        else None,
    )


_PACKED_LINEAR = ("_reorder_linear_weight", "_linear_pointwise")
_INT8_LINEAR = ("qlinear_prepack", "qlinear_pointwise")


def _has_bfloat16() -> bool:
    if not _has_operators(torch.ops.mkldnn, *_PACKED_LINEAR, "_is_mkldnn_bf16_supported"):
        return False
    # On x86 oneDNN also reports bfloat16 as supported if it only emulates it.
    is_x86 = torch.cpu._is_avx2_supported()
    return bool(
        torch.cpu._is_avx512_bf16_supported() if is_x86 else torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _has_operators(namespace: object, *names: str) -> bool:
    return torch.backends.mkldnn.is_available() and all(  # type: ignore[no-untyped-call]
        hasattr(namespace, name) for name in names
    )


def _hidden_from_onednn() -> str:
    """The instruction set that oneDNN is limited to; oneDNN reads the same variable."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
