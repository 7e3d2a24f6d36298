"""What must hold however callers, the engine's end and late aborts interleave."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ssd import AsyncLLM, SamplingParams
from ssd.engine.async_llm import EngineDeadError
from ssd.engine.core import StepOutput
from ssd.engine.outputs import Increment
from ssd.engine.prompts import Prompt, RequestFactory
from ssd.engine.request import Request

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
TRIALS = 30


def length(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(seed=1, max_tokens=max_tokens, n=n, ignore_eos=True)


@pytest.fixture
async def llm(tiny_llama: Path) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM(str(tiny_llama), **SETTINGS)
    yield engine
    await asyncio.to_thread(engine.close)


@dataclass
class HeldStep:
    """Stands for `core.step`: says when it began, then waits for leave; ends as it is told to."""

    llm: AsyncLLM
    failure: BaseException | None = None
    began: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._step = self.llm._engine.core.step
        self.llm._engine.core.step = self  # type: ignore[method-assign]

    def __call__(self) -> StepOutput:
        self.began.set()
        assert self.may_end.wait(30)
        if self.failure is not None:
            raise self.failure
        return self._step()


async def told(task: "asyncio.Task[Any]") -> EngineDeadError:
    with pytest.raises(EngineDeadError) as info:
        await asyncio.wait_for(task, 10)
    return info.value


async def ending(stream: AsyncIterator[Increment]) -> str | None:
    parts = [part async for part in stream]
    return parts[-1].finish_reason


async def until_idle(llm: AsyncLLM) -> None:
    deadline = time.monotonic() + 60
    while llm.seconds_without_progress:
        assert time.monotonic() < deadline, "the engine is still at work"
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("failure", [RuntimeError("the device is gone"), SystemExit(3)])
async def test_a_request_that_arrives_during_the_failing_step_is_told(
    llm: AsyncLLM, failure: BaseException
) -> None:
    step = HeldStep(llm, failure)
    running = asyncio.create_task(llm.generate("The quick", LONG))
    await asyncio.to_thread(step.began.wait)
    late = [asyncio.create_task(llm.generate("The quick", LONG)) for _ in range(5)]
    await asyncio.sleep(0.02)
    step.may_end.set()
    errors = [await told(task) for task in (running, *late)]
    assert all(error.__cause__ is failure for error in errors)
    assert len({id(error) for error in errors}) == len(errors)
    assert (await told(asyncio.create_task(llm.generate("The quick")))).__cause__ is failure
    assert llm.seconds_without_progress == float("inf")


async def test_a_request_that_fails_the_engine_on_its_way_in_is_told(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: Request) -> None:
        raise MemoryError("no room for a request")

    monkeypatch.setattr(llm._engine.core, "add", fail)
    error = await told(asyncio.create_task(llm.generate("The quick", LONG)))
    assert isinstance(error.__cause__, MemoryError)


async def test_a_request_that_arrives_after_close_in_the_last_step_is_told(llm: AsyncLLM) -> None:
    step = HeldStep(llm)
    running = asyncio.create_task(llm.generate("The quick", LONG))
    await asyncio.to_thread(step.began.wait)
    closing = asyncio.create_task(asyncio.to_thread(llm.close))
    await asyncio.sleep(0.02)
    late = [asyncio.create_task(llm.generate("The quick", LONG)) for _ in range(5)]
    await asyncio.sleep(0.02)
    step.may_end.set()
    for task in (running, *late):
        assert "closed" in str(await told(task))
    await closing


@pytest.mark.parametrize("trial", range(6))
async def test_submitters_that_race_with_close_are_all_told(tiny_llama: Path, trial: int) -> None:
    llm = AsyncLLM(str(tiny_llama), **SETTINGS)

    async def submit_until_told() -> None:
        while True:
            await asyncio.wait_for(llm.generate([5, 6], length(2)), 10)

    def loop_of_its_own() -> None:
        with pytest.raises(EngineDeadError):
            asyncio.run(submit_until_told())

    submitters = [asyncio.create_task(asyncio.to_thread(loop_of_its_own)) for _ in range(4)]
    submitters += [asyncio.create_task(submit_until_told()) for _ in range(16)]
    await asyncio.sleep(0.05 + random.Random(trial).random() / 20)
    await asyncio.to_thread(llm.close)
    endings = await asyncio.gather(*submitters, return_exceptions=True)
    assert all(each is None or isinstance(each, EngineDeadError) for each in endings)


async def test_closing_twice_and_aborting_afterwards_are_harmless(llm: AsyncLLM) -> None:
    await asyncio.to_thread(llm.close)
    await asyncio.to_thread(llm.close)
    llm.abort("nobody")
    await told(asyncio.create_task(llm.generate("The quick")))


async def test_cancelling_a_request_with_a_taken_id_leaves_its_holder_alone(llm: AsyncLLM) -> None:
    for _ in range(TRIALS):
        async with aclosing(llm.stream("The quick", length(16), request_id="same")) as holder:
            await anext(holder)
            second = asyncio.create_task(llm.generate("The quick", LONG, request_id="same"))
            await asyncio.sleep(0)
            second.cancel()
            with suppress(asyncio.CancelledError, ValueError):
                await second
            assert await ending(holder) == "length"


@pytest.mark.parametrize("n", [1, 3])
async def test_leaving_at_the_last_finish_reason_leaves_the_successor_alone(llm: AsyncLLM, n: int) -> None:
    for _ in range(TRIALS):
        first = llm.stream("The quick", length(2, n), request_id="again")
        for _ in range(n):
            while (await anext(first)).finish_reason is None:
                pass
        async with aclosing(llm.stream("The quick", length(16), request_id="again")) as successor:
            await anext(successor)
            await first.aclose()
            assert await ending(successor) == "length"


async def test_leaving_at_the_first_of_several_endings_ends_the_others(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (await llm.generate("The quick", length(60, n=2))).outputs
    stop = next(token for token in one.token_ids[:20] if token not in other.token_ids)
    has_ended, is_left, num_later, step = threading.Event(), threading.Event(), 0, llm._engine.core.step

    def held() -> StepOutput:
        """The reader keeps up with the engine: it goes on only when the first ending has been read."""
        nonlocal num_later
        num_later += has_ended.is_set()
        assert not has_ended.is_set() or is_left.wait(30)
        found = step()
        if any(each.finish_reason for each in found.increments):
            has_ended.set()
        return found

    monkeypatch.setattr(llm._engine.core, "step", held)
    stream = llm.stream("The quick", replace(length(60, n=2), stop_token_ids=(stop,)))
    while (await anext(stream)).finish_reason is None:
        pass
    await stream.aclose()
    is_left.set()
    await until_idle(llm)
    assert has_ended.is_set()
    assert num_later < 5


async def test_leaving_an_unread_stream_late_leaves_the_successor_alone(llm: AsyncLLM) -> None:
    """The first request ended long ago, but its caller has not read so far."""
    for _ in range(TRIALS):
        first = llm.stream("The quick", length(3), request_id="again")
        await anext(first)
        await until_idle(llm)
        async with aclosing(llm.stream("The quick", length(16), request_id="again")) as successor:
            await anext(successor)
            await first.aclose()
            assert await ending(successor) == "length"


async def test_abort_by_id_ends_the_successor_that_runs_now(llm: AsyncLLM) -> None:
    first = llm.stream("The quick", length(2), request_id="again")
    assert await ending(first) == "length"
    async with aclosing(llm.stream("The quick", LONG, request_id="again")) as successor:
        await anext(successor)
        llm.abort("again")
        assert await ending(successor) == "abort"


async def test_a_stuck_step_shows_as_missing_progress(llm: AsyncLLM) -> None:
    step = HeldStep(llm)
    task = asyncio.create_task(llm.generate("The quick", length(2)))
    await asyncio.to_thread(step.began.wait)
    await asyncio.sleep(0.05)
    assert llm.seconds_without_progress >= 0.04
    step.may_end.set()
    await task
    await until_idle(llm)


async def test_long_texts_are_tokenised_off_the_event_loop(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    make = RequestFactory.request

    def note_thread(self: RequestFactory, prompt: Prompt, *rest: Any) -> Request:
        threads.append(threading.current_thread())
        return make(self, prompt[:10], *rest)

    monkeypatch.setattr(RequestFactory, "request", note_thread)
    await llm.generate("short", length(1))
    await llm.generate("long " * 10_000, length(1))
    assert [each is threading.current_thread() for each in threads] == [True, False]
