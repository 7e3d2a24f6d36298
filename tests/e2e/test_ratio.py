"""Ratio acceptance in the whole engine: AR's distribution, repeatable, and greedy where the sampler is."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM, SamplingParams
from ssd.engine.outputs import SpeculationStats
from tests.e2e.test_speculative import PROMPTS, mixed_params, outputs

PROMPT = [5, 17, 9, 40]
TOP = 6
LIMIT = 4.9  # standard deviations, two-sided p = 1e-6; seeds are fixed
ENOUGH = 20  # expected count from which on an outcome is looked at


@pytest.fixture
def draft(drafts: dict[str, Path]) -> Path:
    return drafts["cut"]


def load(model: Path, **settings: Any) -> LLM:
    return LLM(str(model), device="cpu", dtype="float32", show_progress=False, **settings)


def drafting(draft: Path, **settings: Any) -> dict[str, Any]:
    return {"mode": "sd", "draft": str(draft), "lookahead": 3, "acceptance": "ratio", **settings}


def joint_law(llm: LLM, count: int) -> dict[tuple[int, ...], float]:
    """Of the next tokens under top_k=TOP, from the log-probabilities that the target states."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP, ignore_eos=True)
        found = llm.generate([[*PROMPT, *known] for known in law], params, use_tqdm=False)
        longer = {}
        for (known, p), output in zip(law.items(), found, strict=True):
            top = (output.outputs[0].logprobs or ())[0].top
            total = sum(math.exp(logprob) for _, logprob in top)
            longer.update({(*known, token): p * math.exp(logprob) / total for token, logprob in top})
        law = longer
    return law


@pytest.mark.parametrize("factor", [1.0, 0.4])
def test_the_distribution_is_the_target_s(target: Path, draft: Path, factor: float) -> None:
    law = joint_law(load(target), 3)
    llm = load(target, **drafting(draft, saguaro=factor))
    requests = [SamplingParams(top_k=TOP, n=128, max_tokens=4, ignore_eos=True, seed=i) for i in range(6)]
    completions = [
        completion
        for output in llm.generate([PROMPT] * len(requests), requests, use_tqdm=False)
        for completion in output.outputs
    ]
    counts = Counter(completion.token_ids[:3] for completion in completions)
    assert counts.keys() <= law.keys()
    num_drawn = len(completions)
    looked_at = {outcome: p for outcome, p in law.items() if p * num_drawn >= ENOUGH}
    assert len(looked_at) > 5
    for outcome, p in looked_at.items():
        assert abs(counts[outcome] - num_drawn * p) < LIMIT * math.sqrt(num_drawn * p * (1 - p)), outcome
    stats = [completion.speculation for completion in completions]
    assert sum(each.drafted for each in stats) > sum(each.accepted for each in stats) > 0


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 14, "max_model_len": 200}, {"max_num_seqs": 2}])
def test_repeats_itself_and_is_greedy_at_temperature_0(
    target: Path, draft: Path, settings: dict[str, int]
) -> None:
    params = mixed_params(24)
    ours = outputs(target, params, dtype="float32", **drafting(draft, saguaro=0.7), **settings)
    assert outputs(target, params, dtype="float32", **drafting(draft, saguaro=0.7), **settings) == ours
    plain = outputs(target, params, dtype="float32")
    assert ours[0] == plain[0]
    assert ours[1:] != plain[1:]  # the same law, other draws


def test_a_perfect_draft_is_always_accepted(target: Path) -> None:
    """With top_k within what q holds, p and q are equal up to rounding."""
    llm = load(target, **drafting(target) | {"draft": {"model": str(target), "precision": "model"}})
    params = SamplingParams(temperature=1.0, top_k=20, seed=1, max_tokens=21, ignore_eos=True)
    output = llm.generate("The quick brown", params, use_tqdm=False)[0].outputs[0]
    assert output.speculation == SpeculationStats(rounds=6, drafted=15, accepted=15)


def test_logprobs_and_stops_are_those_of_the_tokens(target: Path, draft: Path) -> None:
    llm = load(target, **drafting(draft))
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=20, logprobs=0, stop=["e"], ignore_eos=True)
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        completion = output.outputs[0]
        assert "e" not in completion.text
        known = [*output.prompt_token_ids, *completion.token_ids]
        score = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        [again] = llm.generate([known], score, use_tqdm=False)
        scores = (again.prompt_logprobs or ())[-len(completion.token_ids) :]
        expected = [each.logprob for each in scores if each is not None]
        assert [each.logprob for each in completion.logprobs or ()] == pytest.approx(expected, abs=1e-3)
        assert completion.finish_reason in ("stop", "length")
