"""Tools and reasoning over HTTP, with a model that recites them."""

import json
from typing import Any

import pytest

from ssd.engine.outputs import VerifiedTree
from ssd.server.chat import shown_trees
from ssd.server.logprobs import TokenTexts
from tests.server.process import ServerProcess
from tests.server.reciter import PIECES
from tests.tiny import tiny_tokenizer

MESSAGES: Any = [{"role": "user", "content": "Look up."}]
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look", "count")
]


def test_calls_and_reasoning_are_taken_out_of_the_text(reciter: ServerProcess) -> None:
    answer = reciter.openai.chat.completions.create(model="reciter", messages=MESSAGES, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.message.reasoning_content == "I wonder."  # type: ignore[attr-defined]
    assert choice.message.content == "Let me see."
    assert choice.finish_reason == "tool_calls"
    calls: Any = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["look", "count"]
    assert json.loads(calls[0].function.arguments) == {"at": "the sky"}
    assert len({call.id for call in calls}) == 2


def test_a_stream_says_the_same(reciter: ServerProcess) -> None:
    with reciter.openai.chat.completions.stream(model="reciter", messages=MESSAGES, tools=TOOLS) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        message = stream.current_completion_snapshot.choices[0].message
    assert message.content == "Let me see."
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "I wonder."
    calls: Any = message.tool_calls
    assert [call.function.name for call in calls] == ["look", "count"]
    assert json.loads(calls[0].function.arguments) == {"at": "the sky"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    # Each came whole, in one chunk.
    told = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(call.id, call.function.arguments) for call in told if call.function] == [
        (call.id, call.function.arguments) for call in calls
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_wants_one_call_at_a_time_gets_one(reciter: ServerProcess, stream: bool) -> None:
    chats = reciter.openai.chat.completions
    settings: Any = {"messages": MESSAGES, "tools": TOOLS, "parallel_tool_calls": False}
    if stream:
        with chats.stream(model="reciter", **settings) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = chats.create(model="reciter", **settings)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["look"]


def test_answers_and_chunks_say_where_their_tokens_came_from(reciter: ServerProcess) -> None:
    body = {"messages": MESSAGES, "tools": TOOLS, "return_origins": True, "temperature": 0}
    answer = reciter.http.post("/v1/chat/completions", json=body).json()
    whole = answer["choices"][0]
    assert len(whole["origins"]) == len(PIECES) + 1
    assert whole["origins"].count("hit") == answer["usage"]["speculation"]["accepted"] > 0
    streamed = [choice.get("origins", ()) for choice in choices_of(reciter, body)]
    assert [origin for origins in streamed for origin in origins] == whole["origins"]
    without = reciter.http.post("/v1/chat/completions", json={**body, "return_origins": False}).json()
    assert "origins" not in without["choices"][0]


def test_each_token_is_streamed_with_its_own_origin(reciter: ServerProcess) -> None:
    """Several tokens share a chunk only if the text of the first ones is held back."""
    body = {"messages": MESSAGES, "temperature": 0}
    plain = choices_of(reciter, body)
    told = choices_of(reciter, {**body, "return_origins": True})
    texts = ["".join(said(choice) for choice in choices) for choices in (plain, told)]
    assert texts[0] == texts[1]
    assert len(plain) < len(told)
    shown = [(said(choice), choice["origins"]) for choice in told if said(choice)]
    # After the reasoning nothing is held back: the pieces of the model, one by one.
    assert [text for text, _ in shown][-8:] == PIECES[-8:]
    assert [len(origins) for _, origins in shown][-8:] == [1] * 8
    assert {origin for _, (*_, origin) in shown} == {"hit", "target"}


def choices_of(server: ServerProcess, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = server.http.post("/v1/chat/completions", json={**body, "stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [choice for chunk in chunks for choice in chunk["choices"]]


def said(choice: dict[str, Any]) -> str:
    delta: dict[str, str] = choice["delta"]
    return delta.get("reasoning_content", "") + (delta.get("content") or "")


def test_trees_are_told_with_the_texts_of_their_tokens(reciter: ServerProcess) -> None:
    body = {"messages": MESSAGES, "return_trees": True, "temperature": 0}
    assert reciter.http.post("/v1/chat/completions", json=body).json()["choices"][0]["trees"] == []
    [shown] = shown_trees([VerifiedTree(4, (5, 6, 7), (-1, -1, 1), (1,))], TokenTexts(tiny_tokenizer()))
    assert (shown.start, shown.parents, shown.branch) == (4, (-1, -1, 1), (1,))
    assert "".join(shown.tokens) == tiny_tokenizer().decode([5, 6, 7])


def test_without_tools_calls_are_text(reciter: ServerProcess) -> None:
    for settings in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = reciter.openai.chat.completions.create(model="reciter", messages=MESSAGES, **settings)
        choice = answer.choices[0]
        assert choice.message.content.count("<tool_call>") == 2
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"


def test_tools_reach_the_template_and_calls_come_back_to_it(reciter: ServerProcess) -> None:
    first = reciter.openai.chat.completions.create(model="reciter", messages=MESSAGES, tools=TOOLS)
    without = reciter.openai.chat.completions.create(model="reciter", messages=MESSAGES)
    assert first.usage is not None
    assert without.usage is not None
    assert first.usage.prompt_tokens > without.usage.prompt_tokens
    calls: Any = first.choices[0].message.tool_calls
    told = {"role": "tool", "tool_call_id": calls[0].id, "content": "Blue."}
    again: Any = [*MESSAGES, first.choices[0].message, told]
    assert reciter.openai.chat.completions.create(model="reciter", messages=again, tools=TOOLS).choices


def test_a_template_may_open_the_reasoning(reciter: ServerProcess) -> None:
    """The prompt then ends in <think>, and the recited marker is a part of the thought."""
    answer = reciter.openai.chat.completions.create(
        model="reciter", messages=MESSAGES, extra_body={"chat_template_kwargs": {"enable_thinking": True}}
    )
    reasoning = answer.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert reasoning.endswith("I wonder.")
    assert (answer.choices[0].message.content or "").startswith("Let me see.")


PLACE: Any = {
    "type": "object",
    "properties": {"name": {"enum": ["sky"]}},
    "required": ["name"],
    "additionalProperties": False,  # Others could go on past any number of tokens.
}


def test_a_form_is_the_answer_from_its_first_token(reciter: ServerProcess) -> None:
    """Also where the prompt has opened the reasoning: what is held to a form is no thought."""
    opened: Any = {"model": "reciter", "messages": MESSAGES, "max_tokens": 100}
    opened["extra_body"] = {"chat_template_kwargs": {"enable_thinking": True}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
    for tools in ({}, {"tools": TOOLS}):
        said = reciter.openai.chat.completions.create(**opened, **tools, response_format=wanted)
        message: Any = said.choices[0].message
        assert json.loads(message.content)["name"] == "sky"
        assert getattr(message, "reasoning_content", None) is None
    called: Any = {"type": "function", "function": {"name": "look", "parameters": PLACE}}
    said = reciter.openai.chat.completions.create(**opened, tools=[called], tool_choice="required")
    calls: Any = said.choices[0].message.tool_calls
    assert json.loads(calls[0].function.arguments)["name"] == "sky"


def test_log_probabilities_cover_every_token(reciter: ServerProcess) -> None:
    settings: Any = {"model": "reciter", "messages": MESSAGES, "tools": TOOLS, "logprobs": True}
    whole = reciter.openai.chat.completions.create(**settings)
    chunks = reciter.openai.chat.completions.create(**settings, stream=True)
    scored = [
        entry.token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or ()
    ]
    assert scored == [*PIECES, "</s>"]
    assert whole.choices[0].logprobs is not None
    assert [entry.token for entry in whole.choices[0].logprobs.content or ()] == scored
