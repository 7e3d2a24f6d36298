"""Bodies that made, or could have made, the server fail: each is refused with a sentence."""

import json
import time
from typing import Any

import pytest

from tests.server.process import ServerProcess, processor_seconds

COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
HALF = "\ud800"
"""JSON can spell it, UTF-8 cannot."""


def refused(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    content = json.dumps(body).encode()
    response = server.http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {**COMPLETION, "prompt": HALF}, "prompt"),
        ("/v1/completions", {**COMPLETION, "stop": ["a", HALF]}, "stop"),
        ("/v1/completions", {**COMPLETION, "bad_words": [HALF]}, "bad_words"),
        ("/v1/completions", {**COMPLETION, "model": HALF}, "model"),
        ("/v1/completions", {**COMPLETION, "structured_outputs": {"regex": HALF}}, "structured_outputs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HALF}]}, "messages"),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"x": [HALF]}}, "chat_template_kwargs"),
    ],
)
def test_half_a_character_is_no_text(
    server: ServerProcess, path: str, body: dict[str, Any], param: str
) -> None:
    error = refused(server, path, body)
    assert error["param"] == param
    assert "Unicode" in error["message"]


def test_half_a_character_as_a_name(server: ServerProcess) -> None:
    assert "Unicode" in refused(server, "/v1/completions", {**COMPLETION, HALF: 1})["message"]


@pytest.mark.parametrize(
    "name", ["conversation", "messages", "padding", "max_length", "tokenizer_kwargs", "truncation"]
)
def test_what_the_tokenizer_takes_is_not_for_clients(server: ServerProcess, name: str) -> None:
    error = refused(server, "/v1/chat/completions", {**CHAT, "chat_template_kwargs": {name: 1}})
    assert error["param"] == "chat_template_kwargs"
    assert name in error["message"]


def test_a_long_name_is_not_sent_back_whole(server: ServerProcess) -> None:
    response = server.http.post("/v1/completions", json={**COMPLETION, "model": "x" * 1_000_000})
    assert response.status_code == 404
    assert len(response.content) < 5000


@pytest.mark.parametrize("depth", [100, 300, 500, 1000])
def test_a_body_may_be_nested_as_deeply_as_it_likes(server: ServerProcess, depth: int) -> None:
    schema = '{"type": "array", "items": ' * depth + "{}" + "}" * depth
    for body in (
        f'{{"prompt": "Hi", "max_tokens": 2, "structured_outputs": {{"json": {schema}}}}}',
        f'{{"prompt": {"[" * depth + "]" * depth}, "max_tokens": 2}}',
    ):
        headers = {"Content-Type": "application/json"}
        response = server.http.post("/v1/completions", content=body.encode(), headers=headers)
        assert response.status_code in (200, 400), response.text
    assert server.http.get("/health").status_code == 200


def cost(server: ServerProcess, path: str, body: bytes, code: str) -> float:
    """Processor time of the server, the lesser of two: the first of a kind may also load something."""
    spent = []
    for _ in range(2):
        begun = processor_seconds(server.process.pid)
        response = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
        spent.append(processor_seconds(server.process.pid) - begun)
        assert (response.status_code, response.json()["error"]["code"]) == (400, code), response.text[:300]
    return min(spent)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_text_is_refused_for_its_length_before_it_is_tokenised(server: ServerProcess, path: str) -> None:
    """Eight times the text costs little more: what is tokenised of it is bounded."""

    def body(count: int) -> bytes:
        text = "The quick brown fox. " * count
        is_chat = path == "/v1/chat/completions"
        return json.dumps(
            {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        ).encode()

    code = "context_length_exceeded"
    assert cost(server, path, body(320_000), code) < 5 * cost(server, path, body(40_000), code)


def test_a_body_of_too_many_values_is_refused_unread(server: ServerProcess) -> None:
    """The event loop would stand still for as long as reading them takes."""
    body = f'{{"prompt": {listed("1", 4_000_000)}}}'.encode()
    assert cost(server, "/v1/completions", body, "too_many_values") < 5 * parsing_seconds(body)


CALL = '{"type": "function", "function": {"name": "f", "arguments": "{}"}}'
PART = '{"type": "text", "text": ""}'
SPACED = PART.replace("{", "{ \r\n\t ")
OBJECTS = {
    "calls": ("assistant", "tool_calls", CALL),
    "parts": ("user", "content", PART),
    "spaced": ("user", "content", SPACED),
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_body_of_too_many_objects_is_refused_unread(
    server: ServerProcess, kind: str, encoding: str
) -> None:
    """A body of 5 MB kept the event loop for seconds."""
    role, field, item = OBJECTS[kind]
    body = f'{{"messages": [{{"role": "{role}", "{field}": {listed(item, 50_000)}}}]}}'.encode(encoding)
    # Decoding UTF-16 alone takes about half of what parsing takes.
    assert cost(server, "/v1/chat/completions", body, "too_many_objects") < 5 * parsing_seconds(body)


def test_braces_in_a_text_are_no_objects(server: ServerProcess) -> None:
    code = 'if (x) { print("{ {"); } '
    for text in (code * 2000, "{" * 50_000, json.dumps([{"a": {}}] * 9000)):
        answer = server.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]}
        )
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_arguments_may_be_any_text(server: ServerProcess) -> None:
    """A number of more digits than Python reads was an error of the server's."""
    for arguments in ("9" * 5000, "[" * 100_000, '{"a": ' + "9" * 5000 + "}"):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        answer = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
        assert answer.status_code in (200, 400), answer.text


MANY = 390_000
"""Nearly as many as are looked at."""
EMPTY, SHORT_MESSAGE = '""', '{"role":"user","content":""}'


def listed(item: str, count: int = MANY) -> str:
    return f"[{','.join([item] * count)}]"


def named(value: str) -> str:
    return "{" + ",".join(f'"{each}":{value}' for each in range(MANY)) + "}"


MILLIONS: dict[str, tuple[str, str]] = {
    "ids": ("/v1/completions", f'{{"prompt": {listed("1", MANY)}}}'),
    "lists of ids": ("/v1/completions", f'{{"prompt": [{listed("1", MANY)}]}}'),
    "numbers for stops": ("/v1/completions", f'{{"prompt": "x", "stop": {listed("1")}}}'),
    "no messages": ("/v1/chat/completions", f'{{"messages": {listed("1")}}}'),
    "empty messages": ("/v1/chat/completions", f'{{"messages": {listed("{}")}}}'),
    "short messages": (
        "/v1/chat/completions",
        f'{{"messages": {listed(SHORT_MESSAGE, MANY // 2)}}}',
    ),
    "metadata": ("/v1/completions", f'{{"prompt": "x", "metadata": {named(EMPTY)}}}'),
    "biases": ("/v1/completions", f'{{"prompt": "x", "logit_bias": {named(EMPTY)}}}'),
    "fields": ("/v1/completions", named("1")),
    "fields within": ("/v1/completions", f'{{"prompt": "x", "stream_options": {named("1")}}}'),
    "texts for ids": ("/v1/completions", f'{{"prompt": [1, {listed(EMPTY)[1:]}}}'),
}


def parsing_seconds(body: bytes) -> float:
    """Of this machine's processor: the least anybody spends who reads such a body."""
    begun = time.thread_time()
    json.loads(body)
    return time.thread_time() - begun


@pytest.mark.parametrize("kind", MILLIONS)
def test_millions_of_things_are_refused_without_looking_at_each(server: ServerProcess, kind: str) -> None:
    """Everybody waits while they are looked at.

    A refusal takes one or two times as long as parsing alone; without limits it took 10 to 160 times.
    """
    path, text = MILLIONS[kind]
    body, headers = text.encode(), {"Content-Type": "application/json"}
    spent, parsing = [], []
    for _ in range(2):  # The first of a kind may also load something.
        parsing.append(parsing_seconds(body))
        begun = processor_seconds(server.process.pid)
        response = server.http.post(path, content=body, headers=headers)
        spent.append(processor_seconds(server.process.pid) - begun)
        assert response.status_code == 400, response.text
    assert min(spent) < 5 * max(parsing)
