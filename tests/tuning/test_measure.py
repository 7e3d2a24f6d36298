"""What tuning measures of a pair: contention without prompts, drafts where they compute."""

from pathlib import Path

import pytest

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.records import PromptRecord
from ssd.config import DraftConfig, EngineConfig, RunnerConfig
from ssd.models import arithmetic
from ssd.models.arithmetic import Arithmetic
from ssd.tuning.measure import DRAFT_ROWS, TARGET_ROWS, contention, measure, precisions_of


def record(*, prompt_seconds: float) -> PromptRecord:
    """Ten rounds of 0.3 s beside a draft with steps of 0.12 s, after a prompt."""
    return PromptRecord(
        tokens=[1] * 20, num_prompt=500, first_token=prompt_seconds, seconds_per_token=0.15, rounds=11,
        drafted=20, accepted=9, hits=10, late=0, unknown=0, unheard=0, depths=[2, 9],
        seconds=3 + prompt_seconds, step_seconds=3 + prompt_seconds, verify_seconds=3 + prompt_seconds,
        wait_seconds=0, target_rows=530, draft_rows=600, draft_steps=25, draft_seconds=3,
        round_seconds=3, round_steps=10,
    )  # fmt: skip


@pytest.mark.parametrize("prompt_seconds", [0.3, 30.0])
def test_a_long_prompt_is_no_contention(prompt_seconds: float) -> None:
    found = contention([record(prompt_seconds=prompt_seconds)] * 2, target=0.25, draft=0.1)
    assert found == pytest.approx((1.2, 1.2))
    assert contention([record(prompt_seconds=prompt_seconds)], target=0.5, draft=0.5) == (1, 1)


@pytest.mark.parametrize(("int8_steps", "expected"), [(127, ("model", "int8")), (None, ("model",))])
def test_only_what_the_cpu_can_do_is_tried(
    int8_steps: int | None, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    has = Arithmetic(bfloat16=False, packs_float32=False, int8_steps=int8_steps)
    monkeypatch.setattr(arithmetic, "arithmetic", lambda: has)
    assert precisions_of(RunnerConfig(model="m", device="cpu")) == expected


def test_everything_is_measured_on_a_real_pair(tiny_llama: Path, tiny_draft: str) -> None:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32")
    draft = DraftConfig(model=tiny_draft)
    said: list[str] = []
    with CaseEngines(config, draft, [Case(mode="ar"), Case(mode="ssd")]) as engines:
        prompts = ["Once upon a time", "The quick brown fox"]
        facts = measure(engines, prompts, max_tokens=24, temperature=0.0, seed=1, say=said.append)
    assert set(facts.target_seconds) == set(TARGET_ROWS)
    assert tuple(facts.drafts) == precisions_of(config.runner)
    for each in facts.drafts.values():
        assert set(each.seconds) == set(DRAFT_ROWS)
        assert [len(text) for text in each.guesses.texts] == [24, 24]
        assert each.in_turns is not None
        assert min(each.in_turns, *each.seconds.values()) > 0
        assert min(each.target_beside, each.draft_beside) >= 1
