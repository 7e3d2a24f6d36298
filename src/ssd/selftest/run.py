"""Runs the whole self-test: yields results, and keeps measurements for `ssd plan`."""

from collections.abc import Callable, Iterator

import torch

from ssd.models.config import ModelConfig
from ssd.planning.measured import SelfTestRecord
from ssd.runtime.bandwidth import launch_seconds, reading_rate
from ssd.runtime.host import resolve_dtype
from ssd.selftest import times
from ssd.selftest.captured import capture_results
from ssd.selftest.draft_step import draft_step_seconds
from ssd.selftest.kernels import kernel_results
from ssd.selftest.made_up import MadeUpShape
from ssd.selftest.modes import mode_results, run_modes
from ssd.selftest.pay_off import pay_off
from ssd.selftest.results import CheckResult, at_most, in_words, tried

HOST_SECONDS = 2e-3
"""Expected host time of a step: more would be noticeable next to a verification on a GPU."""


class SelfTest:
    """The self-test on one device. `measured` is set after all measurements have succeeded.

    `pair`: a target and a draft. On a GPU a draft step is timed in this draft's shape, and the last result is
    whether SSD pays for the two.
    """

    def __init__(
        self,
        device: torch.device,
        pair: tuple[ModelConfig, ModelConfig] | None = None,
        *,
        has_mps: bool = False,
    ) -> None:
        self.device, self._pair, self._has_mps = device, pair, has_mps
        self.measured: SelfTestRecord | None = None

    def results(self) -> Iterator[CheckResult]:
        parts: dict[str, Callable[[], Iterator[CheckResult]]] = {
            "kernels": lambda: kernel_results(self.device),
            "captured steps": lambda: capture_results(self.device),
            "modes and times": self._modes_and_times,
            "draft": self._draft_and_sampler,
        }
        for part, run_part in parts.items():
            yield from tried(part, run_part)

    def _modes_and_times(self) -> Iterator[CheckResult]:
        runs = run_modes(str(self.device))
        yield from mode_results(runs)
        host = runs["ssd"].host_seconds
        yield at_most(
            "host", "a step of 3 texts, mode ssd", host, HOST_SECONDS, "neither forward nor waiting"
        )
        rate, launch = reading_rate(self.device), launch_seconds(self.device)
        captured = times.captured_launch_seconds(self.device)
        yield times.memory_result(self.device, rate)
        yield from times.launch_results(launch, captured)
        per_layer, beside = times.count_launches()
        models = times.made_up_pair(self.device, resolve_dtype("auto", self.device))
        seconds = times.forward_seconds(models)
        for name, model, found in zip(("T_v", "T_d"), models, seconds, strict=True):
            overhead = (model.checkpoint.config.num_layers * per_layer + beside) * launch
            yield times.forward_result(name, model, found, rate, overhead)
        self.measured = SelfTestRecord(
            device=_name(self.device),
            bandwidth=rate,
            launch=launch,
            captured_launch=captured,
            launches_per_layer=per_layer,
            launches_beside=beside,
            host=host,
            target_seconds=seconds[0],
            draft_seconds=seconds[1],
        )

    def _draft_and_sampler(self) -> Iterator[CheckResult]:
        shape = times.draft_shape(self.device)
        if self._pair is not None and self.device.type == "cuda":
            shape = MadeUpShape.like(self._pair[1])
        step = draft_step_seconds(shape, self.device, resolve_dtype("auto", self.device))
        name = "captured" if self.device.type == "cuda" else "on arrays"
        yield CheckResult("draft", "a step of one tree", f"{in_words(step)}, {name}")
        yield times.sampler_result(self.device)
        if self._pair is not None:
            yield self._pay_off(self._pair, step)

    def _pay_off(self, pair: tuple[ModelConfig, ModelConfig], step: float) -> CheckResult:
        sheet, what = times.data_sheet(self.device), "for this pair"
        if self.device.type != "cuda":
            return CheckResult("SSD", what, "on CPUs `ssd bench run` measures it", "not run")
        if sheet is None or self.measured is None:
            unknown = "no data sheet of this GPU (`ssd plan --list`): `benchmarks.vllm_page` measures it"
            return CheckResult("SSD", what, unknown, "not run")
        _pays, words = pay_off(
            *pair,
            self.measured.as_measured(sheet),
            num_devices=torch.cuda.device_count(),
            has_mps=self._has_mps,
            overheads=self.measured.overheads(),
            draft_step=step,
        )
        return CheckResult("SSD", what, words)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
