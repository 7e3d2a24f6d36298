"""Two agent frameworks and a real server: OpenAI's agents over /v1/responses, pydantic-ai over chats.

Each makes a tool call and hands its result back, and streams an answer. Needs `openai-agents` and
`pydantic-ai-slim[openai]`, and no network:

    python -m campaigns.e2e.agents --model qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.server.process import serving

CODE = "47-blue-11"
ASK = "What is the secret code of the harbour? Use the tool."
GREET = "Say hello in five words."
MODEL = "local"
Trial = Callable[[str], Coroutine[Any, Any, dict[str, Any]]]


async def openai_agents(url: str) -> dict[str, Any]:
    import agents

    agents.set_tracing_disabled(True)
    asked: list[str] = []

    @agents.function_tool
    def secret_code(place: str) -> str:
        """The secret code of a place."""
        asked.append(place)
        return CODE

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
    model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
    settings = agents.ModelSettings(
        temperature=0, max_tokens=80, tool_choice="secret_code", parallel_tool_calls=False, store=True
    )
    agent = agents.Agent(name="a", instructions="Be brief.", model=model, tools=[secret_code])
    called = await agents.Runner.run(agent.clone(model_settings=settings), ASK, max_turns=4)
    free = agents.ModelSettings(temperature=0, max_tokens=40)
    talker = agents.Agent(name="b", instructions="Be brief.", model=model, model_settings=free)
    stream = agents.Runner.run_streamed(talker, GREET)
    deltas = [
        event.data.delta
        async for event in stream.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    await client.close()
    return {
        "asked": asked,
        "turns": len(called.raw_responses),
        "answer": str(called.final_output),
        "deltas": deltas,
        "whole": str(stream.final_output),
    }


async def pydantic_ai(url: str) -> dict[str, Any]:
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
    asked: list[str] = []

    class CallsFirst(AbstractCapability):  # type: ignore[misc]
        """A small model would rather write of the tool than call it."""

        def get_model_settings(self) -> Any:
            return lambda run: {"tool_choice": ["secret_code"] if run.run_step <= 1 else "auto"}

    agent = Agent(
        model,
        instructions="Be brief. Use tools.",
        model_settings={"temperature": 0, "max_tokens": 80},
        capabilities=[CallsFirst()],
    )

    @agent.tool_plain
    def secret_code(place: str) -> str:
        """The secret code of a place."""
        asked.append(place)
        return CODE

    called = await agent.run(ASK)
    talker = Agent(model, instructions="Be brief.", model_settings={"temperature": 0, "max_tokens": 40})
    async with talker.run_stream(GREET) as stream:
        deltas = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        whole = await stream.get_output()
    await client.close()
    turns = sum(message.kind == "response" for message in called.all_messages())
    return {"asked": asked, "turns": turns, "answer": called.output, "deltas": deltas, "whole": whole}


TRIALS: dict[str, Trial] = {"agents": openai_agents, "pydantic_ai": pydantic_ai}
"""By the module that each needs."""


def check(found: dict[str, Any]) -> None:
    """The tool was called and its result led to an answer; a stream is its whole.

    What a small model makes of the result is its own affair.
    """
    assert found["asked"], found
    assert found["turns"] > 1, found
    assert found["answer"], found
    assert len(found["deltas"]) > 1, found
    assert "".join(found["deltas"]).strip() == found["whole"].strip() != "", found


def try_all(model: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        named = {"served_model_name": MODEL}
        with serving(model, Path(folder) / "log", named, dtype="auto", kv_cache_bytes=1 << 28) as server:
            return {name: asyncio.run(TRIALS[name](server.url)) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    for name, found in try_all(parser.parse_args().model, list(TRIALS)).items():
        print(name, found)
        check(found)


if __name__ == "__main__":
    main()
