"""OpenAI's own client against real servers with a real model: a draft changes no answer.

CI takes the model's first layers, `-m slow` all of them.
"""

from pathlib import Path
from typing import Any

import pytest

from ssd.runtime.cores import usable_cores
from tests.server.process import ServerProcess, serving

pytestmark = pytest.mark.models

MODES = ("ar", "ssd")
MODEL: Any = {"model": "smollm2"}
MESSAGES: Any = [{"role": "user", "content": "Tell me a short story about a fox."}]
PLACE: Any = {
    "type": "object",
    "properties": {"animal": {"type": "string", "maxLength": 12}, "legs": {"enum": [2, 4, 6]}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
GREEDY: Any = {"temperature": 0, "frequency_penalty": 1.5}
"""Without a penalty a few layers of a model repeat themselves."""
FORM: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": PLACE}}
TOOLS: Any = [{"type": "function", "function": {"name": "describe", "parameters": PLACE}}]


def streamed(server: ServerProcess, **settings: Any) -> dict[str, Any]:
    """A streamed answer put together again."""
    chunks = list(
        server.openai.chat.completions.create(
            **MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **settings
        )
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    usage = chunks[-1].usage
    assert usage is not None
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "logprobs": [
            entry.model_dump()
            for choice in choices
            if choice.logprobs
            for entry in choice.logprobs.content or ()
        ],
        "reason": choices[-1].finish_reason,
        "tokens": (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
        "speculation": usage.model_extra["speculation"] if usage.model_extra else {},
    }


def formed(server: ServerProcess, **settings: Any) -> dict[str, Any]:
    """An answer that is held to a form, with its tokens."""
    answer = server.openai.chat.completions.create(
        **MODEL, messages=MESSAGES, seed=3, max_tokens=60, logprobs=True, **settings
    )
    choice, usage = answer.choices[0], answer.usage
    assert choice.logprobs is not None
    assert usage is not None
    return {
        "content": choice.message.content,
        "calls": [call.function.model_dump() for call in choice.message.tool_calls or () if call.function],
        "tokens": [entry.model_dump() for entry in choice.logprobs.content or ()],
        "reason": choice.finish_reason,
        "accepted": (usage.model_extra or {})["speculation"]["accepted"],
    }


def answers(server: ServerProcess) -> dict[str, Any]:
    chat = server.openai.chat.completions.create
    greedy: Any = {**GREEDY, "max_tokens": 24}
    scored: Any = {"logprobs": True, "top_logprobs": 2}
    whole = chat(**MODEL, messages=MESSAGES, **greedy, **scored)
    text = whole.choices[0].message.content or ""
    stop = text[2 * len(text) // 3 :][:4]
    several = chat(**MODEL, messages=MESSAGES, temperature=0.8, top_p=0.95, seed=5, max_tokens=12, n=3)
    scored_text = server.openai.completions.create(
        **MODEL, prompt="def fibonacci(n):", seed=1, max_tokens=16, logprobs=1, presence_penalty=0.5
    )
    plain = chat(**MODEL, messages=MESSAGES, **greedy, extra_body={"speculation": False})
    assert whole.choices[0].logprobs is not None
    return {
        "formed": formed(server, response_format=FORM),
        "called": formed(server, tools=TOOLS, tool_choice="required"),
        "streamed": streamed(server, **greedy, **scored),
        "stop": stop,
        "stopped": streamed(server, **greedy, stop=[stop]),
        "whole": text,
        "whole logprobs": [entry.model_dump() for entry in whole.choices[0].logprobs.content or ()],
        "several": [choice.message.content for choice in several.choices],
        "text": scored_text.choices[0].model_dump(),
        "plain": plain.choices[0].message.content,
        "plain drafted": (plain.usage.model_extra or {})["speculation"]["drafted"] if plain.usage else None,
    }


@pytest.fixture(scope="module", params=["shallow_smollm2", pytest.param("smollm2", marks=pytest.mark.slow)])
def by_mode(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    model: Path = request.getfixturevalue(request.param)
    # One core for the target in every mode: the last bits of sums depend on the number of threads.
    usable = usable_cores()
    found = {}
    for mode in MODES:
        drafting: Any = {} if mode == "ar" else {"mode": mode, "draft": {"model": str(model)}}
        drafting["cores"] = (usable[0],)
        if mode == "ssd" and len(usable) > 1:
            drafting["draft"]["cores"] = (usable[-1],)
        log = tmp_path_factory.mktemp(mode) / "log"
        named = {"served_model_name": "smollm2", "tool_format": "hermes"}
        with serving(model, log, named, dtype="auto", kv_cache_bytes=1 << 28, **drafting) as server:
            accepted = "ssd_spec_decode_num_accepted_tokens_total"
            found[mode] = {**answers(server), "accepted": server.metric(accepted)}
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_is_the_whole_answer(by_mode: dict[str, dict[str, Any]], mode: str) -> None:
    found = by_mode[mode]
    assert found["streamed"]["text"] == found["whole"] == found["plain"]
    assert found["streamed"]["logprobs"] == found["whole logprobs"]
    assert len(found["whole logprobs"]) == found["streamed"]["tokens"][1]
    assert len(set(found["several"])) == 3


def test_drafted_answers_are_those_of_the_target_alone(by_mode: dict[str, dict[str, Any]]) -> None:
    alone, drafted = by_mode["ar"], by_mode["ssd"]
    for name in ("whole", "whole logprobs", "several", "text", "plain"):
        assert drafted[name] == alone[name], name
    for name in ("text", "logprobs", "reason", "tokens"):
        assert drafted["streamed"][name] == alone["streamed"][name], name
        assert drafted["stopped"][name] == alone["stopped"][name], name
    assert drafted["plain drafted"] == 0
    for form in ("formed", "called"):
        for name in ("content", "calls", "tokens", "reason"):
            assert drafted[form][name] == alone[form][name], (form, name)
    # Of all answers: on a busy machine a draft that works ahead may come too late for a short one.
    assert drafted["accepted"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_string_inside_a_burst_cuts_text_and_count(
    by_mode: dict[str, dict[str, Any]], mode: str
) -> None:
    found = by_mode[mode]
    assert len(found["stop"]) == 4
    assert found["stopped"]["text"] == found["whole"][: found["whole"].index(found["stop"])]
    assert found["stopped"]["reason"] == "stop"
    assert found["stopped"]["tokens"][1] < found["streamed"]["tokens"][1]
