"""Target and draft on cores of their own, and what a start that fails leaves behind: nothing."""

import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd import LLM
from ssd.bench.cases import cases_of
from ssd.bench.engines import CaseEngines
from ssd.config import DraftConfig, EngineConfig
from ssd.engine.drafting import with_own_cores
from ssd.runtime import cores
from ssd.runtime.cores import can_pin, usable_cores

SMT = [(core, core + 8) for core in range(8)]
PLAIN = [(0,), (1,)]


def shared(
    monkeypatch: pytest.MonkeyPatch, groups: Sequence[tuple[int, ...]] = SMT, **settings: Any
) -> EngineConfig:
    monkeypatch.setattr(cores, "physical_cores", lambda: list(groups))
    draft = {"model": "small", **settings.pop("draft", {})}
    asked = {"mode": "ssd", "draft": draft, "device": "cpu", **settings}
    return with_own_cores(EngineConfig.from_settings("big", asked))


def sides(config: EngineConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return config.cores, config.draft.cores if config.draft else ()


@pytest.mark.parametrize(
    ("groups", "settings", "target", "draft"),
    [
        (SMT, {}, (0, 1, 2, 3, 4, 5), (6, 7)),
        (SMT, {"draft": {"cores": (7,)}}, (0, 1, 2, 3, 4, 5, 6), (7,)),
        (SMT, {"cores": (0, 1, 2, 3)}, (0, 1, 2, 3), (4, 5, 6, 7)),
        (SMT, {"cores": (0, 1), "draft": {"cores": (2, 10)}}, (0, 1), (2, 10)),
        (PLAIN, {}, (0,), (1,)),
        (PLAIN, {"draft": {"cores": (0,)}}, (1,), (0,)),
        (PLAIN, {"cores": (0, 1)}, (0, 1), ()),
        ([(0,)], {}, (), ()),
        # Nobody's to share out: other modes, a draft that runs elsewhere, a GPU.
        (SMT, {"mode": "sd"}, (), ()),
        (SMT, {"draft": {"model": "tcp://far:1"}}, (), ()),
        (SMT, {"draft": {"device": "cuda"}}, (), ()),
    ],
)
def test_each_side_gets_its_own(
    monkeypatch: pytest.MonkeyPatch,
    groups: Sequence[tuple[int, ...]],
    settings: dict[str, Any],
    target: tuple[int, ...],
    draft: tuple[int, ...],
) -> None:
    assert sides(shared(monkeypatch, groups, **settings)) == (target, draft)


def test_with_a_gpu_cores_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert sides(shared(monkeypatch, device="auto")) == ((), ())
    assert sides(shared(monkeypatch, PLAIN, device="cpu")) == ((0,), (1,))


@pytest.mark.parametrize(
    ("groups", "settings", "said"),
    [
        ([(0, 1)], {}, r"target \(cores 0\) and draft \(1\) share a physical core"),
        (SMT, {"cores": (0,), "draft": {"cores": (8,)}}, "share a physical core"),
        ([(0,)], {}, "no core is left"),
        (PLAIN, {"cores": (0, 1)}, "no core is left"),
        (SMT, {}, None),
        (PLAIN, {}, None),
    ],
)
def test_what_costs_speed_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    groups: Sequence[tuple[int, ...]],
    settings: dict[str, Any],
    said: str | None,
) -> None:
    with caplog.at_level(logging.WARNING):
        shared(monkeypatch, groups, **settings)
    if said is None:
        assert caplog.text == ""
    else:
        assert re.search(said, caplog.text)


@pytest.fixture
def spoilt(tiny_llama: Path, tmp_path: Path) -> str:
    """A draft that is refused late, when its weights are read."""
    folder = tmp_path / "spoilt"
    shutil.copytree(tiny_llama, folder)
    for file in folder.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return str(folder)


def place() -> tuple[set[int], int]:
    return os.sched_getaffinity(0), torch.get_num_threads()


needs_two = pytest.mark.skipif(
    not can_pin() or len(usable_cores()) < 2, reason="needs two cores and a way to pin"
)


@needs_two
@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_of_a_start_that_fails_nothing_remains(tiny_llama: Path, spoilt: str, mode: str) -> None:
    """The process stayed on the cores that were meant for the target."""
    torch.set_num_threads(2)
    before = place()
    settings: dict[str, Any] = {"cores": (usable_cores()[0],), "device": "cpu", "dtype": "float32"}
    settings |= {"kv_cache_bytes": 10} if mode == "ar" else {"mode": mode, "draft": spoilt}
    with pytest.raises(ValueError, match=r"holds no block|damaged or truncated|draft did not start"):
        LLM(str(tiny_llama), show_progress=False, **settings)
    assert place() == before


@needs_two
def test_of_a_switch_that_fails_nothing_remains(tiny_llama: Path, spoilt: str) -> None:
    torch.set_num_threads(2)
    with LLM(str(tiny_llama), device="cpu", dtype="float32", show_progress=False) as llm:
        before = place()
        with pytest.raises(ValueError, match="damaged or truncated"):
            llm.switch_mode("sd", draft=spoilt, cores=(usable_cores()[0],))
        assert place() == before


@needs_two
def test_of_a_bench_that_fails_nothing_remains(tiny_llama: Path, spoilt: str) -> None:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32")
    with pytest.raises(ValueError, match="draft did not start"):
        CaseEngines(config, DraftConfig(model=spoilt), cases_of("ar,ssd", [0.0], [1]))
    assert place()[0] == set(usable_cores())
