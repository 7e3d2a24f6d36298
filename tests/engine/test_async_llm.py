"""The front door for servers: streams, concurrency, aborts and failures."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM, AsyncLLM, SamplingParams
from ssd.engine.async_llm import EngineDeadError
from ssd.engine.build import Engine
from ssd.engine.core import StepOutput

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "deterministic": True}
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture
async def llm(tiny_llama: Path) -> AsyncIterator[AsyncLLM]:
    engine = AsyncLLM(str(tiny_llama), **SETTINGS)
    yield engine
    await asyncio.to_thread(engine.close)


def params(seed: int, **more: object) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=12, ignore_eos=True, **more)  # type: ignore[arg-type]


async def until_idle(llm: AsyncLLM) -> None:
    async with asyncio.timeout(60):
        while llm._engine.core.has_work:
            await asyncio.sleep(0.01)


async def test_concurrent_streams_equal_the_offline_outputs(llm: AsyncLLM, tiny_llama: Path) -> None:
    prompts = [[5 + i] * (3 * i + 1) for i in range(12)]
    offline = LLM(str(tiny_llama), show_progress=False, **SETTINGS).generate(
        prompts, [params(i) for i in range(12)], use_tqdm=False
    )

    async def collect(index: int) -> tuple[str, tuple[int, ...], str | None]:
        await asyncio.sleep(0.003 * index)
        parts = [part async for part in llm.stream(prompts[index], params(index))]
        tokens = tuple(token for part in parts for token in part.token_ids)
        return "".join(part.text for part in parts), tokens, parts[-1].finish_reason

    streamed = await asyncio.gather(*(collect(index) for index in range(12)))
    outputs = [output.outputs[0] for output in offline]
    assert streamed == [(each.text, each.token_ids, each.finish_reason) for each in outputs]


async def test_generate_returns_the_whole_output(llm: AsyncLLM) -> None:
    output = await llm.generate("The quick", params(1, n=2), request_id="mine")
    assert output.request_id == "mine"
    assert [len(each.token_ids) for each in output.outputs] == [12, 12]


async def test_leaving_a_stream_aborts_its_request(llm: AsyncLLM) -> None:
    stream = llm.stream("The quick", LONG)
    async for _ in stream:
        break
    await stream.aclose()
    await until_idle(llm)
    assert llm._engine.core._blocks.usage == 0


async def test_cancelling_a_task_aborts_its_request(llm: AsyncLLM) -> None:
    task = asyncio.create_task(llm.generate("The quick", LONG))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(llm)


async def test_abort_ends_a_stream_with_its_reason(llm: AsyncLLM) -> None:
    parts = []
    async for part in llm.stream("The quick", LONG, request_id="x"):
        parts.append(part)
        if len(parts) == 3:
            llm.abort("x")
    assert parts[-1].finish_reason == "abort"
    assert len(parts) < 400


async def test_aborting_an_unknown_request_changes_nothing(llm: AsyncLLM) -> None:
    llm.abort("nobody")
    assert (await llm.generate("The quick", params(1))).outputs


async def test_a_refused_request_hurts_nobody_else(llm: AsyncLLM) -> None:
    good = asyncio.create_task(llm.generate("The quick", params(1)))
    with pytest.raises(ValueError, match="max_model_len"):
        await llm.generate([5] * 4000, params(1))
    assert len((await good).outputs[0].token_ids) == 12


async def test_a_running_request_id_cannot_be_taken_again(llm: AsyncLLM) -> None:
    stream = llm.stream("The quick", LONG, request_id="same")
    await anext(stream)
    with pytest.raises(ValueError, match="already running"):
        await llm.generate("The quick", params(1), request_id="same")
    assert (await anext(stream)).token_ids
    await stream.aclose()


async def test_a_failing_engine_tells_every_caller(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the engine's thread must not leave callers waiting."""
    waiting = asyncio.create_task(llm.generate("The quick", LONG))
    await asyncio.sleep(0.05)

    def fail() -> StepOutput:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(llm._engine.core, "step", fail)
    with pytest.raises(EngineDeadError, match="the device is gone"):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(EngineDeadError):
        await llm.generate("The quick", params(1))
    assert llm.seconds_without_progress == float("inf")


async def test_an_engine_that_cannot_even_be_closed_tells_every_caller(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = AsyncLLM(str(tiny_llama), **SETTINGS)
    waiting = asyncio.create_task(llm.generate("The quick", LONG))
    await asyncio.sleep(0.05)

    def fail(_: Engine) -> None:
        raise OSError("the draft will not go")

    monkeypatch.setattr(Engine, "close", fail)
    await asyncio.to_thread(llm.close)
    with pytest.raises(EngineDeadError, match="the draft will not go"):
        await asyncio.wait_for(waiting, 10)


async def test_closing_ends_running_requests(tiny_llama: Path) -> None:
    llm = AsyncLLM(str(tiny_llama), **SETTINGS)
    waiting = asyncio.create_task(llm.generate("The quick", LONG))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(llm.close)
    with pytest.raises(EngineDeadError, match="closed"):
        await asyncio.wait_for(waiting, 10)


async def test_progress_is_seen(llm: AsyncLLM) -> None:
    assert llm.seconds_without_progress == 0.0
    began, standing = time.monotonic(), 0.0
    async for _ in llm.stream("The quick", LONG):
        standing = llm.seconds_without_progress
    # Of the last of 400 steps, not of all.
    assert standing < (time.monotonic() - began) / 2
