"""What OpenAI's own client, its helpers and popular agents send is taken, or refused with a remedy."""

import json
from typing import Any, Literal

import openai
import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel

from ssd.server.pieces import Call, Content, OneCall
from ssd.server.prompts import template_options
from ssd.server.responses_input import ResponsesRequest, chat_request
from ssd.server.schemas import ChatCompletionRequest
from ssd.server.tools import tool_splitter
from tests.server.process import ServerProcess

MESSAGES: Any = [{"role": "user", "content": "The quick"}]
COMPLETION: dict[str, Any] = {"prompt": "The quick", "max_tokens": 4, "seed": 1}
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "seed": 1}


class Look(BaseModel):
    """Look somewhere."""

    at: Literal["sky", "sea"]
    often: bool


TOOL: Any = pydantic_function_tool(Look, name="look")
FUNCTION: Any = {"type": "function", "strict": True, **TOOL["function"]}


def posted(server: ServerProcess, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = server.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"reasoning_effort": "low", "verbosity": "high"},
        {"reasoning_effort": "none"},
        {"store": True},
        {"max_completion_tokens": 3},
        {"stop": ""},
        {"stop": ["", "zzzz"]},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "Yes.", "annotations": []}, *MESSAGES]},
    ],
    ids=lambda more: ",".join(more),
)
def test_what_clients_send_to_chats_is_taken(forcing: ServerProcess, more: dict[str, Any]) -> None:
    answer = forcing.http.post("/v1/chat/completions", json={**CHAT, **more})
    assert answer.status_code == 200, answer.text


def test_of_two_limits_the_smaller_holds(forcing: ServerProcess) -> None:
    for limits in ((5, 2), (2, 5)):
        body = {**CHAT, "ignore_eos": True, "max_tokens": limits[0], "max_completion_tokens": limits[1]}
        assert posted(forcing, "/v1/chat/completions", body)["usage"]["completion_tokens"] == 2


def test_a_top_p_of_nothing_is_the_best_token(forcing: ServerProcess) -> None:
    greedy = posted(forcing, "/v1/completions", {**COMPLETION, "max_tokens": 12, "temperature": 0})
    for seed in (1, 2):
        body = {**COMPLETION, "max_tokens": 12, "top_p": 0, "seed": seed, "temperature": 5}
        assert posted(forcing, "/v1/completions", body)["choices"] == greedy["choices"]


def test_an_echo_without_a_text_scores_the_prompt(forcing: ServerProcess) -> None:
    body = {**COMPLETION, "echo": True, "logprobs": 1}
    longer = posted(forcing, "/v1/completions", {**body, "max_tokens": 1})
    found = posted(forcing, "/v1/completions", {**body, "max_tokens": 0})
    (choice,), (other,) = found["choices"], longer["choices"]
    assert choice["text"] == "The quick"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == other["logprobs"]["tokens"][:-1]
    assert choice["logprobs"]["token_logprobs"] == other["logprobs"]["token_logprobs"][:-1]
    assert found["usage"]["completion_tokens"] == 0
    streamed = forcing.http.post(
        "/v1/completions", json={"prompt": "The quick", "max_tokens": 0, "echo": True, "stream": True}
    )
    parts = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in parts) == "The quick"
    refused = posted(forcing, "/v1/completions", {**COMPLETION, "max_tokens": 0}, status=400)
    assert "at least 1" in refused["error"]["message"]


def test_one_call_is_one_call() -> None:
    splitter = OneCall(tool_splitter("hermes", ("look",)))
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    pieces = splitter.add(f"Well. {call}\n{call} Done.") + splitter.finish()
    assert [piece for piece in pieces if isinstance(piece, Call)] == [Call("look", "{}")]
    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == "Well. Done."


def test_a_model_by_its_name(forcing: ServerProcess) -> None:
    assert forcing.openai.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="other/name"):
        forcing.openai.models.retrieve("other/name")


def test_a_response_is_the_chats_answer(forcing: ServerProcess) -> None:
    chat = forcing.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, *MESSAGES],
        temperature=0,
        max_tokens=9,
    )
    response = forcing.openai.responses.create(
        model="tiny",
        instructions="Be brief.",
        input="The quick",
        temperature=0,
        max_output_tokens=9,
        store=True,
        metadata={"a": "b"},
    )
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details is not None) == ("incomplete", True)
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == 9
    assert response.metadata == {"a": "b"}


def test_a_streamed_response_adds_up(forcing: ServerProcess) -> None:
    asked: Any = {"model": "tiny", "input": MESSAGES, "max_output_tokens": 9, "temperature": 0}
    whole = forcing.openai.responses.create(**asked, top_logprobs=1)
    with forcing.openai.responses.stream(**asked, top_logprobs=1) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(event.delta for event in deltas) == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert [item.type for item in last.response.output] == ["message"]
    content: Any = whole.output[0]
    assert len(content.content[0].logprobs) == 9
    assert sum(len(event.logprobs) for event in deltas) == 9


def test_a_response_in_a_form(forcing: ServerProcess) -> None:
    parsed = forcing.openai.responses.parse(
        model="tiny", input="The quick", text_format=Look, max_output_tokens=100
    )
    assert isinstance(parsed.output_parsed, Look)
    with forcing.openai.responses.stream(
        model="tiny", input="The quick", text_format=Look, max_output_tokens=100
    ) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Look)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look"}])
def test_a_responses_call_and_what_came_of_it(forcing: ServerProcess, choice: Any) -> None:
    asked: Any = {"model": "tiny", "tools": [FUNCTION], "max_output_tokens": 200}
    whole = forcing.openai.responses.create(**asked, input="The quick", tool_choice=choice)
    with forcing.openai.responses.stream(**asked, input="The quick", tool_choice=choice) as stream:
        streamed = stream.get_final_response()
    outputs: Any = (whole.output, streamed.output)
    for output in outputs:
        (call,) = output
        assert call.type == "function_call"
        assert call.name == "look"
        Look.model_validate_json(call.arguments)
        back = [*MESSAGES, call.model_dump(exclude_none=True, exclude={"parsed_arguments"})]
        back.append({"type": "function_call_output", "call_id": call.call_id, "output": "It is blue."})
        short = {**asked, "max_output_tokens": 4, "tool_choice": "none"}
        answer = forcing.openai.responses.create(**short, input=back)
        assert answer.output[0].type == "message"


def test_items_become_the_messages_of_a_chat() -> None:
    call = {
        "type": "function_call",
        "call_id": "c1",
        "name": "look",
        "arguments": "{}",
        "status": "completed",
    }
    body = ResponsesRequest.model_validate(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
                {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "See."}],
                },
                call,
                {**call, "call_id": "c2"},
                {"type": "function_call_output", "call_id": "c1", "output": "blue"},
                {"type": "function_call_output", "call_id": "c2", "output": "grey"},
            ],
        }
    )
    messages = [message.model_dump(exclude_none=True) for message in chat_request(body).messages]
    made = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "See.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", **made}, {"id": "c2", **made}],
        },
        {"role": "tool", "content": "blue", "tool_call_id": "c1"},
        {"role": "tool", "content": "grey", "tool_call_id": "c2"},
    ]


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ({"previous_response_id": "resp_1"}, "send the conversation in input"),
        ({"conversation": "conv_1"}, "send the conversation in input"),
        ({"tools": [{"type": "web_search"}]}, "function"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "disabled"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "message"),
        ({"max_output_tokens": 0}, "at least 1"),
        ({"n": 2}, "leave it out"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_a_response_cannot_be_is_refused(
    forcing: ServerProcess, more: dict[str, Any], remedy: str
) -> None:
    error = posted(forcing, "/v1/responses", {"input": "Hi", **more}, status=400)["error"]
    assert remedy in error["message"]


def test_a_stream_of_a_response_ends_with_its_last_event(forcing: ServerProcess) -> None:
    body = {"input": "The quick", "max_output_tokens": 3, "stream": True}
    text = forcing.http.post("/v1/responses", json=body).text
    *_, last = text.removesuffix("\n\n").split("\n\n")
    assert last.startswith(("event: response.incomplete\n", "event: response.completed\n"))
    assert "[DONE]" not in text


def test_a_request_for_a_response_is_one_for_a_chat() -> None:
    """Of what both know under other names, or far inside."""
    body = ResponsesRequest.model_validate(
        {
            "input": "Hi",
            "max_output_tokens": 7,
            "include": ["message.output_text.logprobs"],
            "reasoning": {"effort": "none"},
            "text": {"verbosity": "low"},
            "cache_salt": "mine",
            "speculation": False,
            "chat_template_kwargs": {"a": 1},
        }
    )
    chat = chat_request(body)
    assert (chat.max_completion_tokens, chat.logprobs) == (7, True)
    assert (chat.reasoning_effort, chat.verbosity) == ("none", "low")
    assert (chat.cache_salt, chat.speculation, chat.chat_template_kwargs) == ("mine", False, {"a": 1})


def test_templates_are_told_of_effort_and_verbosity() -> None:
    def told(**settings: Any) -> dict[str, Any]:
        return template_options(ChatCompletionRequest.model_validate({"messages": MESSAGES, **settings}))

    assert told() == {}
    assert told(reasoning_effort="low", verbosity="high") == {"reasoning_effort": "low", "verbosity": "high"}
    assert told(reasoning_effort="none") == {"reasoning_effort": "none", "enable_thinking": False}
    # Who names the template's own option means it.
    own = {"chat_template_kwargs": {"enable_thinking": True}}
    assert told(reasoning_effort="none", **own)["enable_thinking"] is True
