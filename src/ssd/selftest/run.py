"""Runs the self-test: yields results one after the other."""

from collections.abc import Iterator

import torch

from ssd.models.config import ModelConfig
from ssd.planning.hardware import called_like
from ssd.runtime.host import resolve_dtype
from ssd.selftest.draft_step import draft_step_seconds
from ssd.selftest.kernels import kernel_results
from ssd.selftest.made_up import TINY, MadeUpShape
from ssd.selftest.pay_off import pay_off
from ssd.selftest.results import CheckResult, in_words, tried

_QWEN3_600M = MadeUpShape(28, 1024, 3072, 16, 8, 151_936, 128)

Pair = tuple[ModelConfig, ModelConfig]
"""A target and a draft."""


def self_test(
    device: torch.device, pair: Pair | None = None, *, has_mps: bool = False
) -> Iterator[CheckResult]:
    """With a pair on a GPU: times a step in its draft's shape, and ends with whether SSD pays."""
    yield from tried("kernels", lambda: kernel_results(device))
    yield from tried("draft", lambda: _draft(device, pair, has_mps=has_mps))


def _draft(device: torch.device, pair: Pair | None, *, has_mps: bool) -> Iterator[CheckResult]:
    is_gpu = device.type == "cuda"
    # The time of a step on a CPU says nothing, so a tiny model shows that it runs.
    shape = TINY if not is_gpu else _QWEN3_600M if pair is None else MadeUpShape.like(pair[1])
    step = draft_step_seconds(shape, device, resolve_dtype("auto", device))
    how = "captured" if is_gpu else "on arrays"
    yield CheckResult("draft", "a step of one tree", f"{in_words(step)}, {how}")
    if pair is not None:
        yield whether_it_pays(device, pair, step, has_mps=has_mps)


def whether_it_pays(device: torch.device, pair: Pair, step: float, *, has_mps: bool) -> CheckResult:
    what = "for this pair"
    if device.type != "cuda":
        return CheckResult("SSD", what, "on CPUs `ssd bench run` measures it", "not run")
    sheet = called_like(torch.cuda.get_device_name(device))
    if sheet is None:
        unknown = "no data sheet of this GPU (`ssd plan --list`): `benchmarks.vllm_page` measures it"
        return CheckResult("SSD", what, unknown, "not run")
    num_devices = torch.cuda.device_count()
    _pays, words = pay_off(*pair, sheet, num_devices=num_devices, has_mps=has_mps, draft_step=step)
    return CheckResult("SSD", what, words)
