"""A runner whose forward goes on by itself: text comes a step later, and nothing else changes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest import mock

import pytest
from torch import Tensor

from ssd import LLM, SamplingParams
from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput
from ssd.runtime.eager import EagerRunner
from ssd.runtime.runner import InFlightStep

T = TypeVar("T")
PROMPTS = [[5, 6, 7], [9, 8], [30, 31, 32, 33]]


class LaterRunner:
    """Says three times that it is not done yet, and fails where it is to fail, when its result is read."""

    is_async = True
    num_uncaptured = 0

    def __init__(self, runner: EagerRunner) -> None:
        self._runner = runner
        self.num_looks = 0
        self.fails_at: int | None = None
        """After so many launches: once the host has gone on, as an error on a device does."""

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        return self._runner.batch(rows)

    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> "Later[T]":
        self.num_looks = 0
        if self.fails_at is not None:
            self.fails_at -= 1
        return Later(self, self._runner.launch(batch, finish))


@dataclass
class Later(Generic[T]):
    runner: LaterRunner
    flight: InFlightStep[T]

    def is_done(self) -> bool:
        self.runner.num_looks += 1
        return self.runner.num_looks > 3

    def collect(self) -> T:
        if self.runner.fails_at == 0:
            raise DeviceGoneError("the device is gone")
        return self.flight.collect()


class DeviceGoneError(RuntimeError):
    pass


def engine(model: Path, *, later: bool, **settings: Any) -> LLM:
    llm = LLM(str(model), device="cpu", max_num_seqs=4, seed=0, show_progress=False, **settings)
    if later:
        decoder: Any = llm._engine.core.decoder
        decoder._runner = LaterRunner(decoder._runner)
        assert decoder.is_async
    return llm


def test_text_waits_for_the_next_forward_but_a_stop_string_does_not(tiny_llama: Path) -> None:
    llm = engine(tiny_llama, later=True)
    core, requests = llm._engine.core, llm._engine.requests
    core.add(requests.request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)))
    assert not core.step().increments  # the prompt's step decides a token, which is told with the next
    assert [len(each.token_ids) for each in core.step().increments] == [1]

    whole = llm.generate(
        [PROMPTS[1]], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False
    )[0]
    text = whole.outputs[0].text
    stop = text[len(text) // 2 :][:2]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    stopped = llm.generate([PROMPTS[1]], params, use_tqdm=False)[0].outputs[0]
    assert stopped.text == text[: text.index(stop)]
    expected = engine(tiny_llama, later=False).generate([PROMPTS[1]], params, use_tqdm=False)[0].outputs[0]
    assert stopped.token_ids == expected.token_ids


def test_what_is_settled_is_told_when_a_request_is_aborted(tiny_llama: Path) -> None:
    llm = engine(tiny_llama, later=True)
    core, requests = llm._engine.core, llm._engine.requests
    request = requests.request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    core.add(request)
    told = [increment for _ in range(3) for increment in core.step().increments]
    aborted = core.abort(request.request_id)
    told += aborted.increments
    output = aborted.finished[0].outputs[0]
    assert output.finish_reason == "abort"
    assert tuple(token for each in told for token in each.token_ids) == output.token_ids
    assert len(output.token_ids) == 2
    assert "".join(each.text for each in told) == output.text
    assert not core.step().increments  # what was under way has no owner any more
    assert not core.has_work


@pytest.mark.parametrize("was_over", [True, False])
def test_a_callers_time_is_a_forwards_only_if_it_computed_all_the_while(
    tiny_llama: Path, *, was_over: bool
) -> None:
    llm = engine(tiny_llama, later=True)
    core, requests = llm._engine.core, llm._engine.requests
    decoder: Any = core.decoder
    core.add(requests.request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)))
    core.step()
    decoder._runner.num_looks = 10 if was_over else 0
    time.sleep(1.0)
    core.step()
    assert (decoder.times.verify >= 1.0) is not was_over
    assert (core.stats.step_seconds >= 1.0) is not was_over
    core.abort(next(iter(core._requests)))
    core.use(core.decoder)  # what was under way is nobody's


def test_what_was_told_when_a_step_failed_comes_with_the_next(tiny_llama: Path) -> None:
    llm = engine(tiny_llama, later=False)
    core, requests = llm._engine.core, llm._engine.requests
    decoder: Any = core.decoder
    decoder._runner = runner = LaterRunner(decoder._runner)
    short = requests.request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    long = requests.request(PROMPTS[1], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    core.add(short)
    core.add(long)
    core.step()
    launch_fails = mock.patch.object(runner, "launch", side_effect=DeviceGoneError)
    with launch_fails, pytest.raises(DeviceGoneError):
        core.step()  # the short one is settled, not told
    finished = [each.request_id for each in core.step().finished]
    assert finished == [short.request_id]
    runner.fails_at = 0
    with pytest.raises(DeviceGoneError):
        core.step()  # what was under way is lost, and computed again
    runner.fails_at = None
    while core.has_work:
        finished += [each.request_id for each in core.step().finished]
    assert finished == [short.request_id, long.request_id]


def test_frames_of_a_draft_are_read_while_a_forward_computes(tiny_llama: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    exact: Any = {"device": "cpu", "deterministic": True, "show_progress": False}
    expected = LLM(str(tiny_llama), **exact).generate(PROMPTS, params, use_tqdm=False)
    with LLM(str(tiny_llama), draft=str(tiny_llama), mode="ssd", **exact) as llm:
        decoder: Any = llm._engine.core.decoder
        decoder._runner = runner = LaterRunner(decoder._runner)
        found = llm.generate(PROMPTS, params, use_tqdm=False)
        assert runner.num_looks == 4
        assert llm.stats.draft is not None
        assert llm.stats.draft.num_frames > 0
    assert [each.outputs[0].token_ids for each in found] == [each.outputs[0].token_ids for each in expected]
