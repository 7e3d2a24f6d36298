"""What the server refuses: by name, in OpenAI's shape, and never by ignoring it."""

import json
from typing import Any

import openai
import pytest

from tests.server.process import ServerProcess

COMPLETION: dict[str, Any] = {"prompt": "The quick", "max_tokens": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {}}}


def refused(server: ServerProcess, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    content = json.dumps(body)  # As it is: what no honest client sends comes through too.
    response = server.http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/completions", "best_off", 2),
        ("/v1/completions", "best_of", 2),
        ("/v1/completions", "suffix", "x"),
        ("/v1/completions", "messages", []),
        ("/v1/completions", "temperature", "hot"),
        ("/v1/completions", "temperature", -1),
        ("/v1/completions", "n", 5),
        ("/v1/completions", "n", True),
        ("/v1/completions", "n", 0),
        ("/v1/completions", "logprobs", 21),
        ("/v1/completions", "stop", ["x"] * 17),
        ("/v1/completions", "logit_bias", {"the": 1}),
        ("/v1/completions", "logit_bias", {"99999": 1}),
        ("/v1/completions", "stop_token_ids", [-1]),
        ("/v1/completions", "max_tokens", 2**80),
        ("/v1/completions", "min_tokens", 2**80),
        ("/v1/completions", "top_k", 2**80),
        ("/v1/completions", "seed", 2**80),
        ("/v1/completions", "temperature", float("nan")),
        ("/v1/completions", "stop", "\ud800"),
        ("/v1/completions", "prompt", []),
        ("/v1/completions", "prompt", ["x"] * 9),
        ("/v1/completions", "prompt", [1, "x"]),
        ("/v1/completions", "prompt", [[]]),
        ("/v1/completions", "stream_options", {"include_usage": True}),
        ("/v1/chat/completions", "functions", []),
        ("/v1/chat/completions", "reasoning_effort", "heroic"),
        ("/v1/chat/completions", "top_logprobs", 2),
        ("/v1/chat/completions", "messages", []),
        ("/v1/chat/completions", "response_format", {"type": "json_schema", "json_schema": {}}),
        ("/v1/chat/completions", "response_format", {"type": "yaml"}),
        ("/v1/chat/completions", "tool_choice", "required"),
        ("/v1/chat/completions", "tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("/v1/chat/completions", "tools", [TOOL]),
        ("/v1/chat/completions", "parallel_tool_calls", 1),
        ("/v1/chat/completions", "chat_template_kwargs", {"tokenize": False}),
    ],
)
def test_a_field_is_refused_by_its_name(server: ServerProcess, path: str, field: str, value: Any) -> None:
    bodies = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
    body = {**bodies[path], field: value}
    error = refused(server, path, body)
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]
    assert field == (error["param"] or "").split(".")[0]


def test_fields_within_fields_are_named_too(server: ServerProcess) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    error = refused(
        server, "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}], "max_tokens": 2}
    )
    assert error["param"].startswith("messages.0.content.0")
    stream = {**COMPLETION, "stream": True, "stream_options": {"include_obfuscation": True}}
    assert "stream_options.include_obfuscation" in refused(server, "/v1/completions", stream)["message"]


def test_counts_need_usage(server: ServerProcess) -> None:
    stream = {**COMPLETION, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    assert "needs include_usage" in refused(server, "/v1/completions", stream)["message"]


def test_fields_that_change_nothing_are_taken(server: ServerProcess) -> None:
    harmless = {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "seed": None}
    more = {"safety_identifier": "x", "prompt_cache_key": "y", "service_tier": "default"}
    assert server.http.post("/v1/completions", json={**COMPLETION, **harmless, "best_of": 1}).is_success
    assert server.http.post("/v1/completions", json={**COMPLETION, **more, "suffix": None}).is_success
    chat = {**CHAT, **harmless, "parallel_tool_calls": True, "response_format": {"type": "text"}}
    assert server.http.post("/v1/chat/completions", json=chat).is_success
    assert server.http.post("/v1/chat/completions", json={**CHAT, **more, "modalities": ["text"]}).is_success


def test_what_comes_only_whole_is_not_streamed(server: ServerProcess) -> None:
    for extra in ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}):
        refused(server, "/v1/completions", {**COMPLETION, "stream": True, **extra})


def test_odd_bodies_are_refused_or_answered_but_break_nothing(server: ServerProcess) -> None:
    """Half a character in text is in test_odd_bodies.py; here it is where no text is read."""
    lone, headers = "\ud800", {"Content-Type": "application/json"}
    for path, body in (
        ("/v1/completions", {"prompt": "Hi", "user": lone}),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": 3}}),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"add_generation_prompt": lone}}),
    ):
        answer = server.http.post(path, content=json.dumps(body), headers=headers)
        assert answer.status_code in (200, 400), (body, answer.text)
    deep = b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert server.http.post("/v1/completions", content=deep, headers=headers).status_code == 400
    assert server.http.post("/v1/completions", json=COMPLETION).status_code == 200


def test_another_model_is_not_found(server: ServerProcess) -> None:
    with pytest.raises(openai.NotFoundError, match="other"):
        server.openai.completions.create(model="other", prompt="Hi")


def test_long_prompts_are_refused_before_a_stream_begins(server: ServerProcess) -> None:
    for stream in (False, True):
        body = {"prompt": [5] * 600, "max_tokens": 2, "stream": stream}
        assert refused(server, "/v1/completions", body)["code"] == "context_length_exceeded"


def test_what_is_no_json_and_what_is_missing(server: ServerProcess) -> None:
    response = server.http.post(
        "/v1/completions", content=b"{nonsense", headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]
    assert "prompt" in refused(server, "/v1/completions", {"max_tokens": 3})["message"]
    unknown = server.http.get("/nothing")
    assert unknown.status_code == 404
    assert "GET /nothing" in unknown.json()["error"]["message"]
    assert server.http.get("/v1/completions").json()["error"]["type"] == "invalid_request_error"


def test_large_bodies_are_refused_declared_or_not(server: ServerProcess) -> None:
    large = b'{"prompt": "' + b"x" * (9 << 20) + b'"}'
    assert server.http.post("/v1/completions", content=large).status_code == 413

    def pieces() -> Any:
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    assert server.http.post("/v1/completions", content=pieces()).status_code == 413
    assert server.http.get("/health").status_code == 200


def test_models_and_version(server: ServerProcess) -> None:
    (model,) = server.openai.models.list().data
    assert model.id == "tiny"
    assert server.http.get("/version").json()["version"]
