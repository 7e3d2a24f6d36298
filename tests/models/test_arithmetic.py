"""What the CPU has is asked in one place, and instructions that are hidden from oneDNN are not counted on."""

import pytest
import torch

from ssd.models.arithmetic import Arithmetic, arithmetic

NOTHING = Arithmetic(bfloat16=False, packs_float32=False, int8_steps=None)
AVX2 = Arithmetic(bfloat16=False, packs_float32=True, int8_steps=None)


def with_instructions(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """An x86 CPU with these, of those that torch is asked about."""
    for name in ("avx2", "avx512", "avx512_bf16", "vnni"):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda has=name in names: has)


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("avx2",), AVX2),
        (("avx2", "avx512"), Arithmetic(bfloat16=False, packs_float32=True, int8_steps=63)),
        (("avx2", "avx512", "vnni"), Arithmetic(bfloat16=False, packs_float32=True, int8_steps=127)),
        (
            ("avx2", "avx512", "vnni", "avx512_bf16"),
            Arithmetic(bfloat16=True, packs_float32=True, int8_steps=127),
        ),
    ],
)
def test_each_kind_of_x86(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], expected: Arithmetic
) -> None:
    with_instructions(monkeypatch, *names)
    assert arithmetic() == expected


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        ("AVX2", AVX2),
        ("AVX2_VNNI", AVX2),
        ("avx512_core", Arithmetic(bfloat16=False, packs_float32=True, int8_steps=63)),
        ("AVX512_CORE_VNNI", Arithmetic(bfloat16=False, packs_float32=True, int8_steps=127)),
        ("AVX512_CORE_BF16", Arithmetic(bfloat16=True, packs_float32=True, int8_steps=127)),
        ("ALL", Arithmetic(bfloat16=True, packs_float32=True, int8_steps=127)),
    ],
)
def test_what_onednn_may_not_use_is_not_there(
    monkeypatch: pytest.MonkeyPatch, most: str, expected: Arithmetic
) -> None:
    with_instructions(monkeypatch, "avx2", "avx512", "vnni", "avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    assert arithmetic() == expected


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_another_architecture_is_asked_for_bfloat16_alone(
    monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool
) -> None:
    with_instructions(monkeypatch)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_bfloat16)
    assert arithmetic() == Arithmetic(bfloat16=has_bfloat16, packs_float32=False, int8_steps=None)


def test_a_torch_without_onednn_has_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_instructions(monkeypatch, "avx2", "avx512", "vnni", "avx512_bf16")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert arithmetic() == NOTHING
