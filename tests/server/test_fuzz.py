"""Requests that nobody should send, from a seeded generator: no failure, no hang, an error's shape."""

import json
import random
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tests.server.process import ServerProcess

NUM_REQUESTS = 250
PATIENCE = 30.0
_LARGE = 60_000
"""A refusal may be lost if the server closes while this many bytes are still being sent."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "seed": 1}
COMPLETION: dict[str, Any] = {"prompt": "Hi", "max_tokens": 3, "seed": 1}
BASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**COMPLETION, "prompt": [[3, 4], "x"], "logprobs": 2, "echo": True}),
    ("/v1/completions", {**COMPLETION, "stream": True, "n": 2, "stop": ["a", "b"], "temperature": 0.5}),
    ("/v1/completions", {**COMPLETION, "logit_bias": {"5": 1.5}, "bad_words": ["fox"], "top_k": 3}),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"json": SCHEMA}, "prompt_logprobs": 1}),
    ("/v1/completions", {**COMPLETION, "structured_outputs": {"regex": "[ab]+"}, "min_tokens": 1}),
    ("/v1/chat/completions", {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}, "return_origins": True}),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": False}}),
]
NAMES = ["", "\ud800", "n", "messages", "padding", "tokenizer_kwargs", "x" * 500, "response_format"]
ODD: list[Any] = [
    *(None, True, 0, -1, 2**31, 2**64, -(2**70), 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "\x00", "\ud800", "🙂" * 300, "x" * 60_000, "(a|a)*{1,999}", "(", "start: start", "required"),
    *([], [[]], [None], [0] * 3000, ["x"] * 100, {}, {"": {}}, {"type": "nothing"}, {"$ref": "#"}),
    *({"pattern": "(a*)*b"}, {"maxLength": 10**9}, {"enum": []}, {"allOf": [{}] * 500}, {"maxItems": -1}),
]
TYPES = ["application/json; charset=utf-16", "text/plain", "", "multipart/form-data; boundary=x", "*/*"]
HEADERS = [
    *("X-Request-Id: \x7f odd", "Authorization: Bearer \xff\xfe", "Content-Encoding: gzip", "Host: [::"),
    *("Expect: 100-continue", "Cookie: " + "c=1;" * 2000, "X-Large: " + "y" * 70_000, " folded: x"),
]
PATHS = ["/", "//v1//models", "/v1/completions/", "/%00", "/..%2f..%2fetc", "/ready?" + "q" * 4000]
METHODS = ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "BREW", "CONNECT"]


def test_no_request_makes_the_server_fail_or_hang(forcing: ServerProcess) -> None:
    chance, statuses, faults = random.Random(0), Counter[str](), list[str]()
    num_logged = len(forcing.log)
    for _ in range(NUM_REQUESTS):
        sent, is_whole = made(chance)
        begun = time.monotonic()
        answer = exchange(forcing, sent, is_whole=is_whole)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head.split(b" ")[1].decode() if head.startswith(b"HTTP/1.1 ") else "none"
        statuses[status] += 1
        is_lost = status == "none" and is_whole and len(sent) < _LARGE
        is_odd = b"application/json" in head and "400" <= status < "500" and not is_error(body)
        if is_lost or is_odd or "500" <= status < "600" or time.monotonic() - begun > PATIENCE:
            faults.append(f"{status} {body[:200]!r} to {sent[:300]!r} … {sent[-100:]!r}")
    assert faults == []
    assert statuses["200"] > 20
    assert statuses["400"] > 50
    forcing.until_idle()
    assert forcing.http.post("/v1/completions", json=COMPLETION).status_code == 200
    logged = [line for line in forcing.log[num_logged:] if line["level"] in ("error", "critical")]
    # uvicorn itself answers a body with a broken frame, and logs that the route answers after it.
    assert [line for line in logged if "LocalProtocolError" not in json.dumps(line)] == []


def is_error(body: bytes) -> bool:
    return not body or set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def exchange(server: ServerProcess, sent: bytes, *, is_whole: bool) -> bytes:
    """The bytes that come back until the server closes; the request asks it to."""
    parts = urlsplit(server.url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as line:
        with suppress(ConnectionError):  # It may refuse a request before it has all of it.
            line.sendall(sent)
            if not is_whole:
                line.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while piece := line.recv(1 << 16):
                received += piece
    return received.removeprefix(b"HTTP/1.1 100 \r\n\r\n")


def made(chance: random.Random) -> tuple[bytes, bool]:
    """A request as it goes over the wire, and whether its body is as long as it says."""
    path, body = chance.choice(BASES)
    method, data = "POST", spoiled(chance, body)
    if chance.random() < 0.08:
        method, path = chance.choice(METHODS), chance.choice([*PATHS, path])
    headers = [f"Content-Type: {chance.choice(TYPES) if chance.random() < 0.1 else 'application/json'}"]
    if chance.random() < 0.15:
        headers.append(chance.choice(HEADERS))
    framing, data, is_whole = framed(chance, data)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, framing, "", ""]
    return "\r\n".join(lines).encode("latin-1", errors="replace") + data, is_whole


def framed(chance: random.Random, data: bytes) -> tuple[str, bytes, bool]:
    kind = chance.random()
    if kind < 0.75:
        return f"Content-Length: {len(data)}", data, True
    if kind < 0.88:
        end = chance.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"zz\r\n", b"-1\r\n\r\n", b""))
        chunk = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
        return "Transfer-Encoding: chunked", chunk + end, end.startswith(b"0")
    declared = chance.choice(("-1", "abc", "\xb2", "0", str(len(data) + 5), "9" * 30, "1, 2", "+3", ""))
    return f"Content-Length: {declared}", data, False


def spoiled(chance: random.Random, body: dict[str, Any]) -> bytes:
    written = json.dumps(body).encode()
    kind = chance.choice(
        ["value"] * 6 + ["name", "cut", "flipped", "twice", "deep", "encoding", "garbage", ""]
    )
    if kind == "value":
        copied = json.loads(written)
        set_somewhere(chance, copied, chance.choice(ODD))
        return json.dumps(copied).encode()
    if kind == "name":
        return json.dumps({**body, chance.choice(NAMES): chance.choice(ODD)}).encode()
    if kind == "cut":
        return written[: chance.randrange(len(written))]
    if kind == "flipped":
        data = bytearray(written)
        data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)
    if kind == "twice":
        again = json.dumps({chance.choice(list(body)): chance.choice(ODD)})
        return written[:-1] + b", " + again[1:].encode()
    if kind == "deep":
        depth = chance.choice((50, 900, 5_000, 100_000))
        opening, closing = chance.choice((("[", "]"), ('{"a":', "}"), ('{"items":[', "]}")))
        nested = opening * depth + "1" + closing * depth
        named = json.dumps({**body, chance.choice(list(body)): "HERE"})
        return named.replace('"HERE"', nested).encode()
    if kind == "encoding":
        text = json.dumps({**body, "user": "ü🙂"}, ensure_ascii=False)
        return text.encode(chance.choice(("utf-16", "utf-8-sig", "utf-32", "utf-7")))
    return chance.randbytes(chance.choice((0, 1, 100, 20_000))) if kind == "garbage" else written


def set_somewhere(chance: random.Random, value: Any, odd: Any) -> None:
    """Replace a value at a random place, however deep."""
    while keys := list(value) if isinstance(value, dict) else list(range(len(value))):
        key = chance.choice(keys)
        if not isinstance(value[key], dict | list) or chance.random() >= 0.6:
            value[key] = odd
            return
        value = value[key]
