"""Chunks of prompts are as large as others can wait for, and change no token."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from ssd.config import EngineConfig
from ssd.engine.build import Engine, build_engine
from ssd.engine.outputs import RequestOutput
from ssd.engine.prefill_budget import PrefillBudget
from ssd.sampling import SamplingParams

MOST = 2048


def settled(seconds_of: float, budget: PrefillBudget) -> int:
    """The budget after a long prompt on a machine that takes so many seconds for a token."""
    for _ in range(20):
        budget.note(budget.num_prompt_tokens, 0, budget.num_prompt_tokens * seconds_of)
    return budget.num_prompt_tokens


@pytest.mark.parametrize(("seconds_of", "budget"), [(1e-5, MOST), (1e-3, 256), (1 / 256, 128), (1.0, 32)])
def test_a_step_takes_about_as_long_as_it_may(seconds_of: float, budget: int) -> None:
    """On a slow machine a chunk of 2,048 tokens is many seconds to everybody else."""
    assert settled(seconds_of, PrefillBudget(MOST, 32)) == budget


def test_the_first_chunk_is_small() -> None:
    """Nobody knows yet how long it takes."""
    assert PrefillBudget(MOST, 32).num_prompt_tokens <= 256


def test_steps_without_prompts_change_nothing() -> None:
    budget = PrefillBudget(MOST, 32)
    before = budget.num_prompt_tokens
    budget.note(0, 0, 100.0)
    assert budget.num_prompt_tokens == before


@pytest.mark.parametrize(("seconds_of", "num_further"), [(0.001, 32), (0.02, 16), (1.0, 1)])
def test_further_texts_move_as_fast_as_others_can_wait_for(seconds_of: float, num_further: int) -> None:
    """Sixteen texts of one caller made every step of the others several times as long."""
    budget = PrefillBudget(MOST, 32)
    for _ in range(20):
        budget.note(0, budget.num_further, (8 + budget.num_further) * seconds_of)
    assert budget.num_further in (num_further, num_further // 2)


class Restless(PrefillBudget):
    """As a machine whose speed changes all the time."""

    def __init__(self) -> None:
        super().__init__(MOST, 32)
        self._sizes = cycle((128, 17, 300, 64, 1))
        self.noted: list[int] = []

    def note(self, num_prompt_tokens: int, num_further: int, seconds: float) -> None:
        if num_prompt_tokens:
            self.noted.append(num_prompt_tokens)
            self._prompts.value = next(self._sizes)


def answer(engine: Engine, budget: PrefillBudget | None) -> RequestOutput:
    engine.core.share_fairly(budget)
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=6, ignore_eos=True, logprobs=2)
    engine.core.add(engine.requests.request([7 + each % 90 for each in range(480)], params, "long"))
    done: Any = ()
    while not done:
        done = engine.core.step().finished
    found: RequestOutput = done[0]
    return found


def test_chunks_by_time_change_no_token(tiny_llama: Path) -> None:
    """In deterministic mode, to the last bit."""
    config = EngineConfig(
        model=str(tiny_llama), dtype="float32", device="cpu", deterministic=True, enable_prefix_caching=False
    )
    engine, budget = build_engine(config), Restless()
    whole, cut = answer(engine, None), answer(engine, budget)
    assert cut.outputs[0].token_ids == whole.outputs[0].token_ids
    assert cut.outputs[0].logprobs == whole.outputs[0].logprobs
    assert budget.noted == [256, 128, 17, 79]


def test_further_texts_of_a_request_get_half_of_the_seats(tiny_llama: Path) -> None:
    config = EngineConfig(model=str(tiny_llama), dtype="float32", device="cpu", max_num_seqs=8)
    engine = build_engine(config)
    engine.core.share_fairly()
    params = SamplingParams(temperature=0.8, n=12, max_tokens=40, ignore_eos=True)
    engine.core.add(engine.requests.request([7, 8, 9], params, "many"))
    running = list[int]()
    for _ in range(6):
        engine.core.step()
        running.append(engine.core.num_running)
    # Its first text, and as many further ones as half of the eight seats.
    assert max(running) == 1 + 4
