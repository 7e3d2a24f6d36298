"""Another decoder around the same target: nothing is loaded again, and no token changes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd import LLM, SamplingParams
from ssd.engine import build
from ssd.engine.outputs import RequestOutput
from ssd.runtime.cores import can_pin, usable_cores
from tests.alive import is_alive

PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=24, ignore_eos=True)
HAS_TWO_CORES = can_pin() and len(usable_cores()) > 1
PROMPT = "The quick brown fox jumps over the lazy dog. Once upon a time there was a small model"


@pytest.fixture
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), device="cpu", deterministic=True, show_progress=False) as made:
        yield made


def answer(llm: LLM) -> RequestOutput:
    return llm.generate(PROMPT, PARAMS, use_tqdm=False)[0]


def cores_of_threads() -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(int(each.name))) for each in Path("/proc/self/task").iterdir()}


def test_modes_change_around_one_target(llm: LLM, tiny_draft: str) -> None:
    """Cores follow the mode, and the draft's process ends with it."""
    target, tokens = llm._engine.loaded, answer(llm).outputs[0].token_ids
    threads = torch.get_num_threads()
    llm.switch_mode("sd", draft=tiny_draft)
    in_turns = answer(llm)
    llm.switch_mode("ssd")
    ahead = answer(llm)
    pid = llm._engine.core.decoder.proposer.speculator.client.pool.replicas[0].source.pid  # type: ignore[attr-defined]
    assert is_alive(pid)
    if HAS_TWO_CORES:
        assert len(os.sched_getaffinity(0)) < len(usable_cores())
    llm.switch_mode("ar")
    alone = answer(llm)
    assert not is_alive(pid)
    if HAS_TWO_CORES:
        assert cores_of_threads() == {frozenset(usable_cores())}
    torch.set_num_threads(threads)
    assert [each.outputs[0].token_ids for each in (in_turns, ahead, alone)] == [tokens] * 3
    assert in_turns.outputs[0].speculation.drafted > 0
    assert alone.outputs[0].speculation.drafted == 0
    assert llm._engine.loaded is target
    assert (llm.mode, in_turns.num_cached_tokens > 0) == ("ar", True)
    llm._engine.core.check_integrity()


def test_a_draft_that_finds_no_memory_on_its_gpu_is_refused_and_all_stays(
    llm: LLM, tiny_draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "free_on_gpus", lambda: {"cuda:0": 1 << 10})
    tokens = answer(llm).outputs[0].token_ids
    with pytest.raises(ValueError, match=r"of cuda:0, and 0\.00 GiB are free .* smaller kv_cache_bytes"):
        llm.switch_mode("ssd", draft=tiny_draft)
    assert llm.mode == "ar"
    assert answer(llm).outputs[0].token_ids == tokens


@pytest.mark.skipif(not HAS_TWO_CORES, reason="needs two cores and a way to pin")
def test_closing_gives_the_cores_back(tiny_llama: Path, tiny_draft: str) -> None:
    """What the process starts later would otherwise be born on the target's core alone."""
    with LLM(
        str(tiny_llama), draft=tiny_draft, mode="ssd", device="cpu", dtype="float32", show_progress=False
    ):
        assert len(os.sched_getaffinity(0)) < len(usable_cores())
    assert os.sched_getaffinity(0) == set(usable_cores())


@pytest.mark.parametrize("named", ["/nowhere", None])
def test_what_cannot_be_had_changes_nothing(llm: LLM, named: str | None) -> None:
    before, core = answer(llm).outputs[0].token_ids, llm._engine.core
    with pytest.raises(ValueError, match=r"no model at|needs a draft"):
        llm.switch_mode("ssd", draft=named)
    assert llm._engine.core is core
    assert answer(llm).outputs[0].token_ids == before


def test_not_while_a_request_runs(llm: LLM, tiny_draft: str) -> None:
    stream = llm.stream(PROMPT, PARAMS)
    next(stream)
    with pytest.raises(ValueError, match="while requests run"):
        llm.switch_mode("sd", draft=tiny_draft)
    stream.close()
    llm.switch_mode("sd", draft=tiny_draft)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "sd"}, "needs a draft"),
        ({"draft": "x"}, "mode is 'ar'"),
        ({"mode": "warp"}, "use one of ar, sd"),
        ({"mode": "sd", "draft": "x", "lookahead": 0}, "between 1 and 16"),
    ],
)
def test_wrong_drafting_settings_are_refused(
    tiny_llama: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(tiny_llama), show_progress=False, **settings)
