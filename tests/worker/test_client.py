"""An engine in a real process: the same outputs as in this one, aborts, deaths and refusals."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ssd import LLM, SamplingParams
from ssd.config import EngineConfig
from ssd.engine.async_llm import EngineDeadError
from ssd.engine.prompts import Prompt
from ssd.sampling import Grammar
from ssd.sampling.constraint import GrammarBusyError
from ssd.worker.client import EngineClient
from ssd.worker.compile_queue import PREPARE_SECONDS
from ssd.worker.preparations import Preparations
from tests.alive import is_alive

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "deterministic": True}
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


def params(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=12, ignore_eos=True, **more)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def started(model: Path, **settings: Any) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(EngineConfig.from_settings(str(model), {**SETTINGS, **settings}))
    try:
        await asyncio.wait_for(client.ready(), 60)
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny_llama: Path) -> AsyncIterator[EngineClient]:
    async with started(tiny_llama) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def mortal(tiny_llama: Path) -> AsyncIterator[EngineClient]:
    """One for a single test, which may kill it."""
    async with started(tiny_llama) as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def until_idle(client: EngineClient) -> None:
    def is_idle() -> bool:
        beat = client.heartbeat
        return beat is not None and beat.num_running == beat.num_waiting == 0 and beat.kv_usage == 0

    await until(is_idle)


def pid_of(client: EngineClient) -> int:
    assert client.pid is not None
    return client.pid


def num_steps(client: EngineClient) -> int:
    return 0 if client.heartbeat is None else client.heartbeat.stats.num_steps


async def until_running(client: EngineClient) -> None:
    await until(lambda: client.heartbeat is not None and client.heartbeat.num_running > 0)


async def test_outputs_equal_those_of_an_engine_in_this_process(
    client: EngineClient, tiny_llama: Path
) -> None:
    prompts: list[Prompt] = ["The quick", [7, 8, 9], "Größe"]
    kinds = [params(1, logprobs=2, prompt_logprobs=1), params(2, n=2), params(3, logit_bias={5: 2.0})]
    offline = LLM(str(tiny_llama), show_progress=False, **SETTINGS).generate(prompts, kinds, use_tqdm=False)
    remote = await asyncio.gather(*map(client.generate, prompts, kinds))
    assert [each.outputs for each in remote] == [each.outputs for each in offline]
    assert [each.prompt_logprobs for each in remote] == [each.prompt_logprobs for each in offline]
    assert [each.prompt for each in remote] == ["The quick", None, "Größe"]


async def test_a_stream_adds_up_to_the_output(client: EngineClient) -> None:
    parts = [part async for part in client.stream("The quick", params(4, logprobs=1))]
    whole = (await client.generate("The quick", params(4, logprobs=1))).outputs[0]
    assert "".join(part.text for part in parts) == whole.text
    assert sum((part.token_ids for part in parts), ()) == whole.token_ids
    assert sum((part.logprobs or () for part in parts), ()) == whole.logprobs


async def test_what_is_not_read_is_joined(client: EngineClient) -> None:
    """A slow reader finds one increment, not hundreds."""
    async with aclosing(client.stream("The quick", LONG)) as stream:
        first = await anext(stream)
        await until_running(client)
        await until_idle(client)
        rest = [part async for part in stream]
    assert len(rest) == 1
    assert len(first.token_ids) + len(rest[0].token_ids) == 400
    assert rest[0].finish_reason == "length"


async def test_leaving_a_stream_frees_its_blocks(client: EngineClient) -> None:
    before = num_steps(client)
    async with aclosing(client.stream("The quick", LONG)) as stream:
        await anext(stream)
    await until(lambda: num_steps(client) > before)  # What it said last may be older than the request.
    await until_idle(client)
    assert num_steps(client) - before < 400, "nobody reads it, and yet it was written to its end"


async def test_cancelling_a_task_frees_its_blocks(client: EngineClient) -> None:
    task = asyncio.create_task(client.generate("The quick", LONG))
    await until_running(client)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(client)


async def test_abort_ends_a_stream_with_its_reason(client: EngineClient) -> None:
    parts = []
    async for part in client.stream("The quick", LONG, request_id="x"):
        parts.append(part)
        if len(parts) == 1:
            client.abort("x")
    assert parts[-1].finish_reason == "abort"


async def test_refusals_come_back_as_value_errors(client: EngineClient) -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        await client.generate([5] * 4000, params(1))
    async with aclosing(client.stream("The quick", LONG, request_id="same")) as stream:
        await anext(stream)
        with pytest.raises(ValueError, match="already running"):
            await client.generate("The quick", params(1), request_id="same")


async def test_a_killed_engine_tells_every_caller(mortal: EngineClient) -> None:
    waiting = asyncio.create_task(mortal.generate("The quick", LONG))
    await until_running(mortal)
    os.kill(pid_of(mortal), signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="code -9"):
        await asyncio.wait_for(waiting, 60)
    assert mortal.state == "dead"
    assert mortal.seconds_without_progress == float("inf")
    with pytest.raises(EngineDeadError):
        await mortal.generate("The quick", params(1))


async def test_a_stopped_engine_is_seen_to_stand_still(mortal: EngineClient) -> None:
    await until_idle(mortal)
    assert mortal.seconds_without_progress == 0
    os.kill(pid_of(mortal), signal.SIGSTOP)
    await until(lambda: mortal.seconds_without_progress > 1.5)
    os.kill(pid_of(mortal), signal.SIGCONT)
    await until(lambda: mortal.seconds_without_progress == 0)


async def test_closing_ends_the_process_and_its_requests(mortal: EngineClient) -> None:
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
        "from ssd.config import EngineConfig\n"
        "from ssd.worker.client import EngineClient\n"
        "async def main():\n"
        "    client = await EngineClient.start(EngineConfig(model=sys.argv[1], device='cpu'))\n"
        "    await client.ready()\n"
        "    print(client.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
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
    client = await EngineClient.start(EngineConfig(model=str(tmp_path / "nothing")))
    with pytest.raises(ValueError, match="no model at"):
        await asyncio.wait_for(client.ready(), 60)
    await client.close()


async def test_a_request_can_do_without_speculation(tiny_llama: Path) -> None:
    """Same tokens, and nothing drafted for it."""
    async with started(tiny_llama, mode="sd", draft=str(tiny_llama), lookahead=4) as client:
        drafted, plain = [
            (await client.generate("The quick", params(1), speculation=each)).outputs[0]
            for each in (True, False)
        ]
    assert drafted == plain
    assert drafted.speculation.accepted > 0
    assert plain.speculation.drafted == 0
    assert plain.speculation.rounds == 12


async def test_of_many_texts_that_one_asks_for_half_the_seats_stay_free(client: EngineClient) -> None:
    """64 seats: the first has one, and all others of its request together 32."""
    many = replace(LONG, n=40)
    async with aclosing(client.stream("The quick", many)) as stream:
        await anext(stream)
        await until(lambda: client.heartbeat is not None and client.heartbeat.num_running >= 33)
        assert client.heartbeat is not None
        assert (client.heartbeat.num_running, client.heartbeat.num_waiting) == (33, 7)
    await until_idle(client)


async def test_a_grammar_that_nobody_compiles_is_waited_for_30_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller is told to try again."""
    assert PREPARE_SECONDS == 30
    monkeypatch.setattr("ssd.worker.preparations.PREPARE_SECONDS", 0.01)
    asked: list[bytes] = []
    preparations = Preparations(asked.append)
    with pytest.raises(GrammarBusyError, match="try again"):
        async with asyncio.timeout(20):
            await preparations.ask(Grammar("regex", "a"))
    assert len(asked) == 1
