"""Streams over HTTP: the chunks add up to the whole answer, whatever was asked for."""

import json
from typing import Any

import pytest

from tests.server.process import ServerProcess

PROMPT = "The quick brown fox"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def chunks(server: ServerProcess, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(parts: list[dict[str, Any]], index: int) -> str:
    choices = [choice for part in parts for choice in part["choices"] if choice["index"] == index]
    return "".join(choice["text"] for choice in choices)


BODIES: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 30},
    {"seed": 1, "max_tokens": 30, "n": 3},
    {"seed": 2, "max_tokens": 30, "stop": ["e", "a"]},
    {"temperature": 0, "max_tokens": 12, "echo": True},
]


@pytest.mark.parametrize("body", BODIES)
def test_completion_chunks_add_up(server: ServerProcess, body: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, **body}
    whole = server.http.post("/v1/completions", json=body).json()["choices"]
    parts = chunks(server, "/v1/completions", body)
    for choice in whole:
        assert joined(parts, choice["index"]) == choice["text"]
        last = [each for part in parts for each in part["choices"] if each["index"] == choice["index"]][-1]
        assert last["finish_reason"] == choice["finish_reason"]
        assert last["stop_reason"] == choice["stop_reason"]
    assert all("usage" not in part for part in parts)


def test_several_prompts_stream_side_by_side(server: ServerProcess) -> None:
    body = {"prompt": [PROMPT, "def add(", "Once"], "seed": 1, "max_tokens": 20, "n": 2}
    whole = server.http.post("/v1/completions", json=body).json()["choices"]
    parts = chunks(server, "/v1/completions", body)
    assert [joined(parts, index) for index in range(6)] == [choice["text"] for choice in whole]


def test_completion_logprobs_add_up(server: ServerProcess) -> None:
    body = {"prompt": PROMPT, "seed": 1, "max_tokens": 20, "logprobs": 2}
    whole = server.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    parts = chunks(server, "/v1/completions", body)
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        found = [entry for part in parts for entry in part["choices"][0]["logprobs"][name]]
        assert found == whole[name]


def test_usage_comes_last_when_asked_for(server: ServerProcess) -> None:
    body: dict[str, Any] = {"seed": 1, "max_tokens": 9, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    for path, prompt in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        parts = chunks(server, path, {**body, **prompt})
        assert parts[-1]["choices"] == []
        assert parts[-1]["usage"]["completion_tokens"] == 9
        assert parts[-1]["usage"]["speculation"]["rounds"] == 9
        assert all(part["usage"] is None for part in parts[:-1])


def test_every_chunk_counts_when_asked_to(server: ServerProcess) -> None:
    body: dict[str, Any] = {"seed": 1, "max_tokens": 9, "ignore_eos": True, "n": 2}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    for path, prompt in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        *parts, last = (part["usage"] for part in chunks(server, path, {**body, **prompt}))
        counts = [usage["completion_tokens"] for usage in parts]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]
        assert counts[-1] == last["completion_tokens"] == 18
        assert all(
            each["total_tokens"] - each["completion_tokens"] == last["prompt_tokens"] for each in parts
        )


def test_chat_chunks_add_up_in_openais_client(server: ServerProcess) -> None:
    settings: Any = {"model": "tiny", "messages": MESSAGES, "seed": 3, "max_tokens": 20, "logprobs": True}
    whole = server.openai.chat.completions.create(**settings, n=2)
    parts = list(server.openai.chat.completions.create(**settings, n=2, stream=True))
    for choice in whole.choices:
        own = [each for part in parts for each in part.choices if each.index == choice.index]
        assert own[0].delta.role == "assistant"
        assert "".join(each.delta.content or "" for each in own) == choice.message.content
        assert own[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None
        scored = [entry for each in own if each.logprobs for entry in each.logprobs.content or ()]
        assert scored == choice.logprobs.content


def test_openais_stream_helper_reads_it(server: ServerProcess) -> None:
    """It builds the message from the chunks by OpenAI's own rules."""
    with server.openai.chat.completions.stream(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=12
    ) as stream:
        stream.until_done()
        streamed = stream.current_completion_snapshot.choices[0].message.content
    whole = server.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=12
    )
    assert streamed == whole.choices[0].message.content
