"""Weights, captured steps, the largest step and KV are planned together: KV gets what is left, no more."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd.config import EngineConfig, RunnerConfig
from ssd.runtime import loading
from ssd.runtime.captured import CapturedRunner
from ssd.runtime.loading import load_model
from ssd.runtime.memory import MemoryPlan, measured_plan
from ssd.runtime.ready import load_ready
from tests.runtime.stand_in import StandInDevice

TOTAL = 96 << 20


def config_of(folder: Path, **others: Any) -> RunnerConfig:
    """Texts so long and many that memory alone bounds the pool."""
    settings = {"step_rows": 4, "step_logits": 4, "max_model_len": 64, "block_size": 4, **others}
    return RunnerConfig(model=str(folder), device="cpu", dtype="float32", max_num_seqs=10_000, **settings)


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


class Bars:
    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []
        self.num_steps: list[int] = []
        self.num_closed = 0

    def make(self, description: str, total: int) -> "Bars":
        self.said.append((description, total))
        self.num_steps.append(0)
        return self

    def update(self, count: int, /) -> None:
        self.num_steps[-1] += count

    def close(self) -> None:
        self.num_closed += 1


def test_kv_gets_what_is_left() -> None:
    assert MemoryPlan(1000, 700, 100, 70).kv_bytes == 700 - 100 - 70 - 30
    assert MemoryPlan(1000, 700, 100, 70, share=0.5).kv_bytes == 250
    assert MemoryPlan(1000, 100, 100, 70).kv_bytes == 0


def test_what_is_rehearsed_is_measured_and_given_back() -> None:
    gpu = StandInDevice(TOTAL)
    free = gpu.free_bytes()
    plan = measured_plan(gpu, lambda: torch.zeros(1 << 10), lambda: torch.zeros(3 << 18), share=1.0)
    assert (plan.graphs, plan.working, plan.free) == (3 << 20, 4 << 10, free)
    assert gpu.free_bytes() == free


def test_everything_fits_and_nothing_is_left_over(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights, KV and all captured steps there, the largest step still has its room, and a little."""
    gpu, plans = StandInDevice(TOTAL), list[MemoryPlan]()

    def noted(*given: Any, **how: Any) -> MemoryPlan:
        plans.append(measured_plan(*given, **how))
        return plans[0]

    monkeypatch.setattr(loading, "measured_plan", noted)
    loaded = load_ready(config_of(tiny_llama), gpu=gpu)
    assert isinstance(loaded.runner, CapturedRunner)
    shape = loaded.pool.shape
    used = shape.num_blocks * shape.bytes_per_block
    left, [plan] = gpu.free_bytes(), plans
    assert used > TOTAL // 4
    assert plan.graphs > 1 << 20
    assert plan.working < left < plan.working + TOTAL * 0.03 + (1 << 20)


def test_what_is_asked_for_is_given_or_refused(tiny_llama: Path) -> None:
    asked = load_model(config_of(tiny_llama, kv_cache_bytes=1 << 20), gpu=StandInDevice(TOTAL)).pool.shape
    assert (1 << 20) - asked.bytes_per_block < asked.num_blocks * asked.bytes_per_block <= 1 << 20
    for more in ({"kv_cache_bytes": TOTAL}, {"num_blocks": TOTAL // asked.bytes_per_block}):
        with pytest.raises(ValueError, match=r"the GPU has .* left .* lower kv_cache_bytes or num_blocks"):
            load_model(config_of(tiny_llama, **more), gpu=StandInDevice(TOTAL))


def test_each_step_moves_the_bar_and_the_plan_is_said(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ssd.runtime")
    bars = Bars()
    load_ready(config_of(tiny_llama, step_rows=2), show_progress=bars.make, gpu=StandInDevice(TOTAL))
    name = bars.said[0][0].removeprefix("loading ")
    assert bars.said[1:] == [(f"measuring steps of {name}", 6), (f"capturing steps of {name}", 6)]
    assert bars.num_steps[1:] == [6, 6]
    assert bars.num_closed == 3
    assert "left for KV" in caplog.text


def test_deterministic_steps_are_not_captured_where_bits_would_differ(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_ready(config_of(tiny_llama, deterministic=True), gpu=StandInDevice(TOTAL))
    assert not isinstance(loaded.runner, CapturedRunner)
    assert "steps run eagerly" in caplog.text


def test_a_target_leaves_room_for_the_draft_beside_it() -> None:
    def share(**settings: Any) -> float:
        return EngineConfig.from_settings("target", settings).runner.kv_share

    assert share() == 1.0
    assert share(mode="sd", draft="small") == 0.5
    assert share(mode="ssd", draft="small") == 0.5
    assert share(mode="ssd", draft={"model": "small", "device": "cuda:1"}) == 1.0
    assert share(mode="ssd", draft="tcp://elsewhere:1") == 1.0
