"""Compares kernels with their torch implementations: many shapes on a GPU, a few interpreted on a CPU."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

import torch

from ssd.draft.server.kernel_checks import ForestScene, check_steps
from ssd.draft.tree.tables import Shape
from ssd.kernels.trust import leave_to_torch
from ssd.runtime.kernel_checks import (
    AttentionCase,
    CaseSequence,
    KernelCase,
    KernelCheckResult,
    LogitsCase,
    RowsCase,
    check_kernels,
)
from ssd.selftest.results import CheckResult

_PART = "kernels"
_SECONDS = 240.0
_HEADS = ((32, 8, 64), (64, 8, 128), (16, 8, 128))
"""Of Llama-3.2 1B, Llama-3.1 70B, Qwen3 0.6B."""
SCENES: tuple[KernelCase, ...] = (
    AttentionCase(
        8, 2, 64, torch.float32, (CaseSequence(0, 5), CaseSequence(37, 1), CaseSequence(300, 9)), padding=3
    ),
    AttentionCase(8, 1, 128, torch.float16, (CaseSequence(90, 17), CaseSequence(5, 1))),
    AttentionCase(
        4, 2, 64, torch.float32, (CaseSequence(40, 12, 30), CaseSequence(9, 3), CaseSequence(70, 5, 0))
    ),
    AttentionCase(4, 2, 128, torch.float16, (CaseSequence(600, 2), CaseSequence(33, 7, 60)), page=8),
    AttentionCase(
        4, 2, 64, torch.float16, (CaseSequence(1030, 3), CaseSequence(1020, 9)), deterministic=True
    ),
    LogitsCase(5, 2500),
    LogitsCase(4, 2049, truncates=True),
    LogitsCase(3, 1100, truncates=True, head_tokens=True),
    RowsCase(4, 576, 1536, torch.float32),
    RowsCase(3, 2304, 1100, torch.float16),
)
ROUNDS = (
    ForestScene(
        Shape(
            3,
            4,
            rows=5,
            lookup=3,
            slots=12,
            children=3,
            outcome=4,
            ring=8,
            ends=2,
            blocks=32,
            first_tree_slot=999,
        ),
        seed=10,
    ),
    ForestScene(
        Shape(3, 5, slots=80, children=2, outcome=4, ring=8, ends=2, blocks=32, first_tree_slot=4096),
        count=6,
        crowd=62,
        seed=30,
    ),
)
GRID: tuple[KernelCase, ...] = (
    *SCENES,
    *(
        AttentionCase(*heads, dtype, parts)
        for heads in _HEADS
        for dtype in (torch.bfloat16, torch.float16)
        for parts in (
            (CaseSequence(0, 17), CaseSequence(700, 9), CaseSequence(33, 1)),
            (CaseSequence(600, 12, 60), CaseSequence(40, 12, 0), CaseSequence(5, 1)),
            (CaseSequence(4000, 9),),
        )
    ),
    LogitsCase(17, 128_256),
    LogitsCase(12, 151_936, truncates=True),
    *(
        RowsCase(17, *sizes, dtype)
        for sizes in ((2048, 8192), (4096, 14_336), (1024, 3072))
        for dtype in (torch.bfloat16, torch.float16)
    ),
)


def kernel_results(device: torch.device) -> Iterator[CheckResult]:
    """A result for each kernel. Kernels that fail are replaced by torch in this process."""
    if find_spec("triton") is None:
        yield CheckResult(_PART, "all", "Triton is not installed: torch computes everything", "not run")
    elif device.type == "cpu":
        yield from _results(_interpreted(), where="a few scenes, interpreted")
    else:
        findings = [*check_kernels(device, GRID), *check_steps(device, ROUNDS)]
        for each in findings:
            if not each.is_sound:
                leave_to_torch(each.kernel, device)
        yield from _results(findings, where="scenes")


def _results(findings: Iterable[KernelCheckResult], *, where: str) -> Iterator[CheckResult]:
    by_kernel = defaultdict[str, list[KernelCheckResult]](list)
    for each in findings:
        by_kernel[each.kernel].append(each)
    for kernel, mine in by_kernel.items():
        wrong = [each for each in mine if not each.is_sound]
        worst = max(each.worst for each in mine)
        found = f"{len(mine) - len(wrong)} of {len(mine)} equal ({where}), worst {worst:.1e}"
        if wrong:
            why = f"{wrong[0].case}: {wrong[0].description}"
            yield CheckResult(_PART, kernel, found, "failed: replaced by its torch form", why)
        else:
            yield CheckResult(_PART, kernel, found)


def _interpreted() -> list[KernelCheckResult]:
    run = subprocess.run(
        [sys.executable, "-m", "ssd.selftest.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[-1] if run.stderr.strip() else "it ended early")
    return [KernelCheckResult(**json.loads(line)) for line in run.stdout.splitlines()]
