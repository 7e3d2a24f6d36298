"""Requests that nobody should send, from a seeded generator: broken bodies, odd values, odd framing.

Knows bytes on the wire. What the server should say to them is not known here, only that it is no failure.
"""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHOICE = {"type": "function", "function": {"name": "look"}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "seed": 1}
COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 3, "seed": 1}
BASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {**COMPLETION, "prompt": [[3, 4], "x"], "logprobs": 2, "echo": True}),
    ("/v1/completions", {**COMPLETION, "stream": True, "n": 2, "stop": ["a", "b"], "temperature": 0.5}),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"5": 1.5}, "bad_words": ["fox"], "top_k": 3}),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"json": SCHEMA}, "prompt_logprobs": 1}),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"regex": "[ab]+"}, "min_tokens": 1}),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"grammar": 'start: "a" "b"'}}),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"choice": ["a", "b"]}}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "auto"}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": CHOICE}),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": False}}),
    ("/tokenize", {"prompt": "Hi", "add_special_tokens": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
    ("/detokenize", {"tokens": [3, 4, 5]}),
)
NAMES = (
    *(
        "",
        "\ud800",
        "n",
        "conversation",
        "messages",
        "documents",
        "padding",
        "max_length",
        "tokenizer_kwargs",
    ),
    *("return_assistant_tokens_mask", "x" * 500, "best_of", "response_format"),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, 1e308, -1e-320),
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        "",
        "\x00",
        "\ud800",
        "\udfff\ud800",
        "🙂" * 300,
        "x" * 60_000,
    ),
    *(
        [],
        [[]],
        [None],
        [0] * 3000,
        ["x"] * 100,
        [["a"]],
        {},
        {"": {}},
        {"type": "object"},
        {"type": "nothing"},
    ),
    *(
        {"$ref": "#"},
        {"$ref": "http://nowhere/"},
        {"pattern": "(a*)*b"},
        "(a|a)*{1,999}",
        "(",
        "start: start",
    ),
    *('start: "a"', "[a-z]{1,100000}", "(a{1,1000}){1,1000}", "\\p{L}{1,5000}", {"maxLength": 10**9}),
    *({"enum": []}, {"enum": ["x" * 5000] * 50}, {"allOf": [{}] * 500}, {"maxItems": -1}, "required", "none"),
)
TYPES = (
    *(
        "application/json",
        "application/json; charset=utf-16",
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
    ),
    *("multipart/form-data; boundary=x", "application/vnd.api+json", "*/*", "application/json" * 50),
)
HEADERS = (
    *(
        "X-Request-Id: \x7f odd",
        "X-Request-Id: " + "a" * 300,
        "Authorization: Bearer \xff\xfe",
        "Accept: nothing/x",
    ),
    *(
        "traceparent: 00-zz-zz-00",
        "Content-Encoding: gzip",
        "Expect: 100-continue",
        "Cookie: " + "c=1;" * 2000,
    ),
    *(
        "Host: [::",
        "X-Large: " + "y" * 70_000,
        "Range: bytes=0-",
        "Upgrade: websocket",
        "TE: trailers",
        " folded: x",
    ),
)
PATHS = (
    "/",
    "//v1//models",
    "/v1/completions/",
    "/%00",
    "/..%2f..%2fetc",
    "/v1/models?x=%ff",
    "/docs",
    "/ready?" + "q" * 4000,
)
METHODS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "BREW", "CONNECT")


@dataclass(frozen=True, slots=True)
class RawRequest:
    data: bytes
    is_whole: bool
    """Its body is as long as it says: the server has no reason to wait for more."""


class RequestMaker:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def request(self) -> RawRequest:
        """An HTTP request as it goes over the wire."""
        path, body = self._random.choice(BASES)
        method, spoil = "POST", self._random.choice(self._spoilers)
        data = spoil(body)
        if self._random.random() < 0.08:
            method, path = self._random.choice(METHODS), self._random.choice((*PATHS, path))
        headers = [f"Content-Type: {self._random.choice(TYPES) if self._random.random() < 0.1 else TYPES[0]}"]
        if self._random.random() < 0.15:
            headers.append(self._random.choice(HEADERS))
        framing, data, is_whole = self._framed(data)
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            *headers,
            framing,
            "",
            "",
        ]
        head = "\r\n".join(lines).encode("latin-1", errors="replace")
        return RawRequest(head + data, is_whole)

    @property
    def _spoilers(self) -> list[Callable[[dict[str, Any]], bytes]]:
        return [
            *([self._odd_value] * 6),
            *(self._odd_name, self._truncated, self._flipped, self._twice, self._deep, self._other_encoding),
            *(self._garbage, _written),
        ]

    def _odd_value(self, body: dict[str, Any]) -> bytes:
        spoiled = json.loads(json.dumps(body))
        for _ in range(self._random.randint(1, 2)):
            self._set_somewhere(spoiled, self._random.choice(ODD))
        return _written(spoiled)

    def _set_somewhere(self, value: Any, odd: Any) -> None:
        """At a random place, however deep."""
        while True:
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            if not keys:
                return
            key = self._random.choice(keys)
            if isinstance(value[key], dict | list) and self._random.random() < 0.6:
                value = value[key]
                continue
            value[key] = copy.deepcopy(odd)
            return

    def _odd_name(self, body: dict[str, Any]) -> bytes:
        name, value = self._random.choice(NAMES), self._random.choice(ODD)
        if "messages" in body and self._random.random() < 0.6:
            return _written({**body, "chat_template_kwargs": {name: value}})
        return _written({**body, name: value})

    def _truncated(self, body: dict[str, Any]) -> bytes:
        data = _written(body)
        return data[: self._random.randrange(len(data))]

    def _flipped(self, body: dict[str, Any]) -> bytes:
        data = bytearray(_written(body))
        for _ in range(self._random.randint(1, 4)):
            data[self._random.randrange(len(data))] = self._random.randrange(256)
        return bytes(data)

    def _twice(self, body: dict[str, Any]) -> bytes:
        name = self._random.choice(list(body))
        again = json.dumps({name: self._random.choice(ODD)})
        return _written(body)[:-1] + b", " + again[1:].encode()

    def _deep(self, body: dict[str, Any]) -> bytes:
        depth = self._random.choice((50, 900, 5_000, 100_000))
        opening, closing = self._random.choice((("[", "]"), ('{"a":', "}"), ('{"items":[', "]}")))
        nested = opening * depth + "1" + closing * depth
        name = self._random.choice(list(body))
        return _written({**body, name: "HERE"}).replace(b'"HERE"', nested.encode())

    def _other_encoding(self, body: dict[str, Any]) -> bytes:
        text = json.dumps({**body, "user": "ü🙂"}, ensure_ascii=False)
        return text.encode(self._random.choice(("utf-16", "utf-8-sig", "utf-32", "utf-7")))

    def _garbage(self, _body: dict[str, Any]) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 100, 20_000)))

    def _framed(self, data: bytes) -> tuple[str, bytes, bool]:
        """A header that says how long the body is, the body in that framing, and whether that is right."""
        length = len(data)
        kind = self._random.random()
        if kind < 0.75:
            return f"Content-Length: {length}", data, True
        if kind < 0.88:
            cut = self._random.randint(0, length)
            pieces = [piece for piece in (data[:cut], data[cut:]) if piece]
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
            end = self._random.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"zz\r\n", b"-1\r\n\r\n", b""))
            return "Transfer-Encoding: chunked", chunks + end, end.startswith(b"0")
        declared = self._random.choice(
            ("-1", "abc", "\xb2", "0", str(length + 5), "9" * 30, "1, 2", "+3", "")
        )
        return f"Content-Length: {declared}", data, False


def _written(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
