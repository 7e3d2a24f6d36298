"""An engine in a real process: the same outputs as in this one, aborts, deaths and refusals."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ssd import LLM, AsyncLLM, SamplingParams
from ssd.config import EngineConfig
from ssd.engine.outputs import CompletionOutput, Increment, RequestOutput
from ssd.engine.prompts import Prompt, RequestFactory
from ssd.engine.request import Request
from ssd.errors import EngineDeadError
from ssd.sampling import Grammar
from ssd.sampling.constraint import GrammarBusyError
from ssd.worker.compile_queue import PREPARE_SECONDS
from ssd.worker.engine_process import Preparations
from tests.alive import is_alive

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "deterministic": True}
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


def params(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=12, ignore_eos=True, **more)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def started(model: Path, **settings: Any) -> AsyncIterator[AsyncLLM]:
    llm = AsyncLLM(str(model), **{**SETTINGS, **settings})
    try:
        await asyncio.wait_for(llm.ready(), 60)
        yield llm
    finally:
        await llm.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tiny_llama: Path) -> AsyncIterator[AsyncLLM]:
    async with started(tiny_llama) as llm:
        yield llm


@pytest_asyncio.fixture(loop_scope="module")
async def mortal(tiny_llama: Path) -> AsyncIterator[AsyncLLM]:
    """One for a single test, which may kill it."""
    async with started(tiny_llama) as llm:
        yield llm


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def until_idle(llm: AsyncLLM) -> None:
    def is_idle() -> bool:
        beat = llm.heartbeat
        return beat is not None and beat.num_running == beat.num_waiting == 0 and beat.kv_usage == 0

    await until(is_idle)


def pid_of(llm: AsyncLLM) -> int:
    pid = llm._process.child.pid
    assert pid is not None
    return pid


def num_steps(llm: AsyncLLM) -> int:
    return 0 if llm.heartbeat is None else llm.heartbeat.stats.num_steps


async def until_running(llm: AsyncLLM) -> None:
    await until(lambda: llm.heartbeat is not None and llm.heartbeat.num_running > 0)


async def output_of(llm: AsyncLLM, request: Request) -> CompletionOutput:
    *_, last = [event async for event in llm.run(request)]
    assert isinstance(last, RequestOutput)
    return last.outputs[0]


async def ending(stream: AsyncIterator[Increment]) -> str | None:
    parts = [part async for part in stream]
    return parts[-1].finish_reason


async def test_outputs_equal_those_of_an_engine_in_this_process(llm: AsyncLLM, tiny_llama: Path) -> None:
    prompts: list[Prompt] = ["The quick", [7, 8, 9], "Größe"]
    kinds = [params(1, logprobs=2, prompt_logprobs=1), params(2, n=2), params(3, logit_bias={5: 2.0})]
    offline = LLM(str(tiny_llama), show_progress=False, **SETTINGS).generate(prompts, kinds, use_tqdm=False)
    remote = await asyncio.gather(*map(llm.generate, prompts, kinds))
    assert [each.outputs for each in remote] == [each.outputs for each in offline]
    assert [each.prompt_logprobs for each in remote] == [each.prompt_logprobs for each in offline]
    assert [each.prompt for each in remote] == ["The quick", None, "Größe"]


async def test_a_stream_adds_up_to_the_output(llm: AsyncLLM) -> None:
    parts = [part async for part in llm.stream("The quick", params(4, logprobs=1))]
    whole = (await llm.generate("The quick", params(4, logprobs=1))).outputs[0]
    assert "".join(part.text for part in parts) == whole.text
    assert sum((part.token_ids for part in parts), ()) == whole.token_ids
    assert sum((part.logprobs or () for part in parts), ()) == whole.logprobs


async def test_what_is_not_read_is_joined(llm: AsyncLLM) -> None:
    """A slow reader finds one increment, not hundreds."""
    async with aclosing(llm.stream("The quick", LONG)) as stream:
        first = await anext(stream)
        await until_running(llm)
        await until_idle(llm)
        rest = [part async for part in stream]
    assert len(rest) == 1
    assert len(first.token_ids) + len(rest[0].token_ids) == 400
    assert rest[0].finish_reason == "length"


async def test_leaving_a_stream_frees_its_blocks(llm: AsyncLLM) -> None:
    before = num_steps(llm)
    async with aclosing(llm.stream("The quick", LONG)) as stream:
        await anext(stream)
    await until(lambda: num_steps(llm) > before)  # What it said last may be older than the request.
    await until_idle(llm)
    assert num_steps(llm) - before < 400, "nobody reads it, and yet it was written to its end"


async def test_cancelling_a_task_frees_its_blocks(llm: AsyncLLM) -> None:
    task = asyncio.create_task(llm.generate("The quick", LONG))
    await until_running(llm)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(llm)


async def test_abort_ends_a_stream_with_its_reason(llm: AsyncLLM) -> None:
    parts = []
    async for part in llm.stream("The quick", LONG, request_id="x"):
        parts.append(part)
        if len(parts) == 1:
            llm.abort("x")
    assert parts[-1].finish_reason == "abort"


async def test_refusals_come_back_as_value_errors(llm: AsyncLLM) -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        await llm.generate([5] * 4000, params(1))
    async with aclosing(llm.stream("The quick", LONG, request_id="same")) as stream:
        await anext(stream)
        with pytest.raises(ValueError, match="already running"):
            await llm.generate("The quick", params(1), request_id="same")


async def test_cancelling_a_request_with_a_taken_id_leaves_its_holder_alone(llm: AsyncLLM) -> None:
    async with aclosing(llm.stream("The quick", params(1), request_id="taken")) as holder:
        await anext(holder)
        second = asyncio.create_task(llm.generate("The quick", LONG, request_id="taken"))
        await asyncio.sleep(0)
        second.cancel()
        with suppress(asyncio.CancelledError, ValueError):
            await second
        assert await ending(holder) == "length"


@pytest.mark.parametrize("n", [1, 3])
async def test_leaving_at_the_last_finish_reason_leaves_the_successor_alone(llm: AsyncLLM, n: int) -> None:
    for _ in range(10):
        first = llm.stream("The quick", replace(params(1, n=n), max_tokens=2), request_id="again")
        for _ in range(n):
            while (await anext(first)).finish_reason is None:
                pass
        async with aclosing(llm.stream("The quick", params(1), request_id="again")) as successor:
            await anext(successor)
            await first.aclose()
            assert await ending(successor) == "length"


async def test_leaving_at_the_first_of_several_endings_ends_the_others(llm: AsyncLLM) -> None:
    many = replace(LONG, temperature=1, seed=1, n=2)
    one, other = (await llm.generate("The quick", many)).outputs
    stop = next(token for token in one.token_ids[:20] if token not in other.token_ids)
    await until_idle(llm)
    before = num_steps(llm)
    async with aclosing(llm.stream("The quick", replace(many, stop_token_ids=(stop,)))) as stream:
        while (await anext(stream)).finish_reason is None:
            pass
    await until(lambda: num_steps(llm) > before)
    await until_idle(llm)
    assert num_steps(llm) - before < 400


async def test_abort_by_id_ends_the_successor_that_runs_now(llm: AsyncLLM) -> None:
    llm.abort("nobody")
    assert await ending(llm.stream("The quick", params(1), request_id="again")) == "length"
    async with aclosing(llm.stream("The quick", LONG, request_id="again")) as successor:
        await anext(successor)
        llm.abort("again")
        assert await ending(successor) == "abort"


async def test_long_texts_are_tokenised_off_the_event_loop(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    make = RequestFactory.request

    def note_thread(self: RequestFactory, prompt: Prompt, *rest: Any, **more: Any) -> Request:
        threads.append(threading.current_thread())
        return make(self, prompt[:10], *rest, **more)

    monkeypatch.setattr(RequestFactory, "request", note_thread)
    await llm.generate("short", params(1))
    await llm.generate("long " * 10_000, params(1))
    assert [each is threading.current_thread() for each in threads] == [True, False]


async def test_a_conversation_is_the_tokens_that_the_tokenizer_makes(llm: AsyncLLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert await llm.chat_prompt(messages) == llm.requests.chat_prompt(messages)


async def test_a_request_waits_for_the_model(tiny_llama: Path) -> None:
    llm = AsyncLLM(str(tiny_llama), **SETTINGS)
    assert llm.state == "loading"
    assert (await asyncio.wait_for(llm.generate("The quick", params(1)), 60)).outputs
    await llm.close()
    await llm.close()
    llm.abort("nobody")
    with pytest.raises(EngineDeadError, match="closed"):
        await llm.generate("The quick")


async def test_a_killed_engine_tells_every_caller(mortal: AsyncLLM) -> None:
    waiting = asyncio.create_task(mortal.generate("The quick", LONG))
    await until_running(mortal)
    os.kill(pid_of(mortal), signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="code -9"):
        await asyncio.wait_for(waiting, 60)
    assert mortal.state == "dead"
    assert mortal.seconds_without_progress == float("inf")
    with pytest.raises(EngineDeadError):
        await mortal.generate("The quick", params(1))


async def test_a_stopped_engine_is_seen_to_stand_still(mortal: AsyncLLM) -> None:
    await until_idle(mortal)
    assert mortal.seconds_without_progress == 0
    os.kill(pid_of(mortal), signal.SIGSTOP)
    await until(lambda: mortal.seconds_without_progress > 1.5)
    os.kill(pid_of(mortal), signal.SIGCONT)
    await until(lambda: mortal.seconds_without_progress == 0)


async def test_closing_ends_the_process_and_its_requests(mortal: AsyncLLM) -> None:
    pid = pid_of(mortal)
    waiting = asyncio.create_task(mortal.generate("The quick", LONG))
    await until_running(mortal)
    await mortal.close()
    with pytest.raises(EngineDeadError, match="closed"):
        await waiting
    assert not is_alive(pid)


async def test_an_engine_ends_when_its_parent_is_killed(tiny_llama: Path, tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from ssd import AsyncLLM\n"
        "async def main():\n"
        "    async with AsyncLLM(sys.argv[1], device='cpu') as llm:\n"
        "        print(llm._process.child.pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tiny_llama)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    assert list(tmp_path.glob("ssd-*")), "the folder of their sockets"
    parent.kill()
    await parent.wait()
    await until(lambda: not is_alive(pid))
    assert not list(tmp_path.glob("ssd-*"))


async def test_settings_that_cannot_work_are_refused_with_their_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model at"):
        async with asyncio.timeout(60), AsyncLLM(str(tmp_path / "nothing")):
            pass
    with pytest.raises(ValueError, match="unknown"):
        AsyncLLM("a model", depth=3)
    with pytest.raises(ValueError, match="no model at"):
        async with asyncio.timeout(60), AsyncLLM(EngineConfig(model=str(tmp_path / "nothing"))):
            pass


async def test_a_request_can_do_without_speculation(tiny_llama: Path) -> None:
    """Same tokens, and nothing drafted for it."""
    async with started(tiny_llama, mode="sd", draft=str(tiny_llama), lookahead=4) as llm:
        requests = [await llm.request("The quick", params(1), speculation=each) for each in (True, False)]
        drafted, plain = [await output_of(llm, each) for each in requests]
    assert drafted == plain
    assert drafted.speculation.accepted > 0
    assert plain.speculation.drafted == 0
    assert plain.speculation.rounds == 12


async def test_of_many_texts_that_one_asks_for_half_the_seats_stay_free(llm: AsyncLLM) -> None:
    """64 seats: the first has one, and all others of its request together 32."""
    many = replace(LONG, n=40)
    async with aclosing(llm.stream("The quick", many)) as stream:
        await anext(stream)
        await until(lambda: llm.heartbeat is not None and llm.heartbeat.num_running >= 33)
        assert llm.heartbeat is not None
        assert (llm.heartbeat.num_running, llm.heartbeat.num_waiting) == (33, 7)
    await until_idle(llm)


async def test_a_grammar_that_nobody_compiles_is_waited_for_30_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller is told to try again."""
    assert PREPARE_SECONDS == 30
    monkeypatch.setattr("ssd.worker.engine_process.PREPARE_SECONDS", 0.01)
    asked: list[bytes] = []
    preparations = Preparations(asked.append)
    with pytest.raises(GrammarBusyError, match="try again"):
        async with asyncio.timeout(20):
            await preparations.ask(Grammar("regex", "a"))
    assert len(asked) == 1
