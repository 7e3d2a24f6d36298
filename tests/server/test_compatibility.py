"""What OpenAI's own client, its helpers and popular agents send is taken, or refused with a remedy."""

import json
from typing import Any, Literal

import openai
import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel

from ssd.server.pieces import Call, Content, OneCall
from ssd.server.prompts import template_options
from ssd.server.schemas import ChatCompletionRequest
from ssd.server.tools import tool_splitter
from tests.server.process import ServerProcess

MESSAGES: Any = [{"role": "user", "content": "The quick"}]
COMPLETION: dict[str, Any] = {"prompt": "The quick", "max_tokens": 4, "seed": 1}
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "seed": 1}


class Look(BaseModel):
    """Look somewhere."""

    at: Literal["sky", "sea"]


TOOL: Any = pydantic_function_tool(Look, name="look")


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


def test_templates_are_told_of_effort_and_verbosity() -> None:
    def told(**settings: Any) -> dict[str, Any]:
        return template_options(ChatCompletionRequest.model_validate({"messages": MESSAGES, **settings}))

    assert told() == {}
    assert told(reasoning_effort="low", verbosity="high") == {"reasoning_effort": "low", "verbosity": "high"}
    assert told(reasoning_effort="none") == {"reasoning_effort": "none", "enable_thinking": False}
    # Who names the template's own option means it.
    own = {"chat_template_kwargs": {"enable_thinking": True}}
    assert told(reasoning_effort="none", **own)["enable_thinking"] is True
