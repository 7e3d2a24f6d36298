"""Clients that keep the server waiting: for headers, for bodies, for somebody to read its answers."""

import asyncio
import contextlib
import http.client
import json
import socket
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Response
from starlette.types import Message, Receive, Scope, Send

from ssd.config.server import ServerConfig
from ssd.server.body import BoundedRoute
from ssd.server.body_limit import BodyLimit
from tests.server.conftest import WORDY
from tests.server.process import ServerProcess, resident_bytes, serving, until

UNREAD: dict[str, Any] = {
    "prompt": "The quick",
    "max_tokens": 200,
    "ignore_eos": True,
    "stream": True,
    "logprobs": 20,
    "n": 2,
}
SHORT: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
MIB = 1 << 20
JSON_TYPE = (b"content-type", b"application/json")


@contextlib.contextmanager
def line_to(server: ServerProcess, sent: bytes = b"", *, room: int | None = None) -> Iterator[socket.socket]:
    """A connection on which so much was sent; `room`: for what comes back unread."""
    address = urlsplit(server.url)
    with socket.socket() as line:
        if room is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        line.settimeout(60)
        line.connect((address.hostname, address.port))
        line.sendall(sent)
        yield line


def headers(path: str, length: int, method: str = "POST") -> bytes:
    said = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{said}Content-Length: {length}\r\n\r\n".encode()


def request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return headers(path, len(content)) + content


def until_closed(line: socket.socket) -> bytes:
    """What came before the server closed the line; fails if it does not."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := line.recv(1 << 20):
            received += piece
    return received


def is_open(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return line.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        line.settimeout(60)


def test_an_unread_stream_gives_its_seats_back_when_the_engine_has_finished(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """With two seats, everybody else got 429 while the engine was idle.

    All of it is there for whoever reads it after all, also from a server that was told to end meanwhile.
    """
    settings = {"served_model_name": WORDY, "max_queue": 0, "write_seconds": 600.0, "drain_seconds": 600.0}
    with serving(tiny_llama, tmp_path / "log", settings, max_num_seqs=2) as server:
        with line_to(server, request("/v1/completions", UNREAD), room=4096) as line:
            until(lambda: server.num_at_work > 0)
            assert server.http.post("/v1/completions", json=SHORT).status_code == 429
            server.until_idle()
            assert server.http.post("/v1/completions", json=SHORT).status_code == 200
            server.process.terminate()
            until(lambda: server.http.get("/ready").json() == {"status": "draining"})
            received = until_closed(line)
            assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert received.count(b'"finish_reason":"length"') == UNREAD["n"]
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("asked", ["a stream", "many pages"])
def test_who_reads_nothing_is_left(hurried: ServerProcess, asked: str) -> None:
    """It kept its connection, and what was written for it, for ever."""
    pages = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
    sent = request("/v1/completions", UNREAD) if asked == "a stream" else pages
    before = len(connections(hurried))
    with line_to(hurried, sent, room=4096):
        until(lambda: len(connections(hurried)) == before + 1)
        until(lambda: len(connections(hurried)) == before)
    until(lambda: asked != "a stream" or any(line.get("disconnected") for line in hurried.log))
    assert hurried.http.post("/v1/completions", json=SHORT).status_code == 200


def connections(server: ServerProcess) -> list[str]:
    """Open ones of the server, as the kernel knows them; not that by which it is asked about them."""
    port = f"{urlsplit(server.url).port:04X}"
    lines = [line.split() for line in Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()]
    # State 01: established. Those that are closed but not yet forgotten hold nothing of the server's.
    return [line[2] for line in lines[1:] if line[1].endswith(f":{port}") and line[3] == "01"]


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: local"])
def test_headers_have_a_deadline(hurried: ServerProcess, sent: bytes) -> None:
    """50 of 50 half-sent headers were open after a minute."""
    with line_to(hurried, sent) as line:
        assert until_closed(line) == b""


def test_trickled_headers_have_the_same_deadline(hurried: ServerProcess) -> None:
    """A byte now and then is no reason to wait on; nor on a line that has had an answer."""
    whole = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with line_to(hurried, whole) as line:
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
        until(lambda: not takes(line, b"X"))


def takes(line: socket.socket, sent: bytes) -> bool:
    time.sleep(0.1)
    try:
        line.sendall(sent)
    except OSError:
        return False
    return True


def test_bodies_have_a_deadline(hurried: ServerProcess) -> None:
    """An unfinished body was waited for without end."""
    with line_to(hurried, headers("/v1/completions", 1000) + b'{"prompt":') as line:
        answer = until_closed(line)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_seconds" in answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/v1/models", 200),
        ("POST", "/nothing", 404),
        ("PUT", "/v1/completions", 405),
    ],
)
def test_no_body_is_read_where_none_is_used(
    hurried: ServerProcess, method: str, path: str, status: int
) -> None:
    """Answered at once; what is still not sent when the deadline comes is not waited for."""
    with line_to(hurried, headers(path, MIB, method) + b"x" * 1000) as line:
        assert line.recv(1 << 16).startswith(f"HTTP/1.1 {status}".encode())
        until_closed(line)


def test_a_line_is_kept_after_a_body_nobody_wanted(hurried: ServerProcess) -> None:
    with contextlib.closing(http.client.HTTPConnection(urlsplit(hurried.url).netloc, timeout=60)) as line:
        line.connect()
        first = line.sock
        for _ in range(3):
            line.request("GET", "/version", body=b"hello")
            assert line.getresponse().read().startswith(b'{"version"')
            assert line.sock is first


def test_unfinished_bodies_take_little_memory(hurried: ServerProcess) -> None:
    """40 bodies of 8 MB took 425 MB. All together have 8 times what one may have."""
    before = resident_bytes(hurried.process.pid)
    piece = b"x" * (7 * MIB)
    with contextlib.ExitStack() as lines:
        for _ in range(50):
            line = lines.enter_context(line_to(hurried))
            with contextlib.suppress(OSError):  # It may have been closed to make room for the next.
                line.sendall(headers("/v1/completions", 8 * MIB) + piece)
        assert most_resident(hurried, seconds=1) - before < 25 * len(piece)
        # Whoever sends all of it finds room, at the cost of those who do not.
        answer = httpx.post(f"{hurried.url}/v1/completions", json={**SHORT, "user": "x" * MIB}, timeout=60)
        assert answer.status_code == 200


def test_the_body_that_is_read_longest_makes_room() -> None:
    """Eight times the largest are held at most, whatever the deadline."""
    config = ServerConfig(max_body_bytes=1024, body_seconds=3600)
    held: list[int] = []
    is_over = asyncio.Event()
    answered: dict[int, int] = {}
    said: dict[int, list[Message]] = defaultdict(list)

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        held.append(len((await receive())["body"]))
        await is_over.wait()
        await receive()  # The body is used: an answer that takes hours leaves its room to others.

    async def press() -> None:
        limit = BodyLimit(app, config, ("/",))

        async def send_body(number: int, *, is_whole: bool) -> None:
            async def send(message: Message) -> None:
                answered.setdefault(number, message.get("status", 0))
                said[number].append(message)

            parts = [{"type": "http.request", "body": b"x" * 1000, "more_body": not is_whole}]

            async def receive() -> Message:
                return parts.pop() if parts else await asyncio.sleep(3600, {})

            await limit({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)

        # Eight fit; of eleven, three are given up: the first of those that are not whole.
        tasks = []
        for number in range(11):
            tasks.append(asyncio.create_task(send_body(number, is_whole=number in (0, 2, 4))))
            await asyncio.sleep(0.01)
        assert answered == {1: 408, 3: 408, 5: 408}
        # Where all are whole and at work, one more is told to come again.
        for number in range(20, 26):
            tasks.append(asyncio.create_task(send_body(number, is_whole=True)))
            await asyncio.sleep(0.01)
        assert held == [1000] * 8
        assert answered[25] == 503
        start, body = said[25][:2]
        assert b"retry-after" in dict(start["headers"])
        assert json.loads(body["body"])["error"]["code"] == "no_room"
        is_over.set()
        for number in range(30, 37):
            tasks.append(asyncio.create_task(send_body(number, is_whole=True)))
            await asyncio.sleep(0.01)
        assert len(held) == 15
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(press())


async def refuse(message: Message) -> None:
    raise AssertionError(message)


def test_what_is_ended_for_others_is_not_counted_twice() -> None:
    """A body that came in while it had to go was taken off the count once more than it was on."""
    config = ServerConfig(max_body_bytes=1024, body_seconds=3600)
    statuses: list[int] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def press() -> None:
        limit = BodyLimit(app, config, ("/",))

        async def send_body(num_parts: int) -> None:
            left = num_parts

            async def receive() -> Message:
                nonlocal left
                left -= 1
                await asyncio.sleep(0)
                return {"type": "http.request", "body": b"x" * (1000 // num_parts), "more_body": left > 0}

            async def send(message: Message) -> None:
                statuses.extend([message["status"]] if "status" in message else [])

            await limit({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)

        # Many at once, each in parts that are all there: whoever is ended has been woken for the next one.
        for _ in range(5):
            await asyncio.gather(*(send_body(4) for _ in range(40)))
        assert set(statuses) == {200, 408}
        statuses.clear()
        await asyncio.gather(*(send_body(1) for _ in range(12)))
        assert sorted(statuses) == [200] * 8 + [503] * 4

    asyncio.run(press())


def test_a_body_is_not_held_while_its_answer_takes_its_time() -> None:
    """What was read of it, as bytes and as JSON, is gone when the route has returned."""
    is_waiting = asyncio.Event()
    held: list[int] = []

    class Slow(Response):
        async def __call__(self, *_: object) -> None:
            held.append(tracemalloc.get_traced_memory()[0])
            is_waiting.set()

    app = FastAPI()
    routes = APIRouter(route_class=BoundedRoute)

    @routes.post("/")
    async def route(body: dict[str, Any]) -> Response:
        return Slow()

    app.include_router(routes)
    limited = BodyLimit(app, ServerConfig(), ("/",))
    head = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [JSON_TYPE]}

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"a": 1%s}' % (b" " * size), "more_body": False}

    size = 10
    asyncio.run(limited(dict(head), receive, refuse))  # What is made once is made by now.
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        size = 4 * MIB
        asyncio.run(limited(dict(head), receive, refuse))
    finally:
        tracemalloc.stop()
    assert held[-1] - before < MIB


def test_the_next_large_body_is_read_when_an_endpoint_has_the_one_before() -> None:
    """The lane was held while an endpoint did its work, and a long text held up all large bodies.
    While a body is checked it is held."""
    inside: list[int] = []
    most: list[int] = []
    both_are_in = asyncio.Event()

    async def check() -> None:
        inside.append(1)
        await asyncio.sleep(0)
        most.append(len(inside))
        inside.pop()

    app = FastAPI()
    routes = APIRouter(route_class=BoundedRoute, dependencies=[Depends(check)])
    begun: list[int] = []

    @routes.post("/")
    async def route(body: dict[str, Any]) -> Response:
        begun.append(1)
        if len(begun) < 2:
            await both_are_in.wait()
        both_are_in.set()
        return Response()

    app.include_router(routes)
    head = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [JSON_TYPE]}

    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"a": 1%s}' % (b" " * MIB), "more_body": False}

    async def send(_: Message) -> None:
        return None

    async def two() -> None:
        await asyncio.wait_for(asyncio.gather(*(app(dict(head), receive, send) for _ in range(2))), 30)

    asyncio.run(two())
    assert most == [1, 1]


def most_resident(server: ServerProcess, seconds: float) -> int:
    """While it reads what sockets hold."""
    found, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        found = max(found, resident_bytes(server.process.pid))
        time.sleep(0.02)
    return found


def test_a_new_connection_finds_room_at_the_cost_of_one_that_waits(hurried: ServerProcess) -> None:
    """There was no cap. A line in the middle of an answer is not closed for another."""
    body = {**UNREAD, "logprobs": None, "max_tokens": 60}
    with httpx.stream("POST", f"{hurried.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        with contextlib.ExitStack() as idle:
            opened = [idle.enter_context(line_to(hurried, b"GET")) for _ in range(80)]
            assert httpx.get(f"{hurried.url}/version").status_code == 200
            assert sum(map(is_open, opened)) <= 64
            assert not is_open(opened[0])
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_where_every_connection_is_at_work_one_more_is_told(hurried: ServerProcess) -> None:
    """A cap that nobody can talk his way around."""
    body = {**UNREAD, "logprobs": None}
    with contextlib.ExitStack() as running:
        for _ in range(64):
            line = running.enter_context(line_to(hurried, request("/v1/completions", body)))
            assert line.recv(1 << 10).startswith(b"HTTP/1.1 200")
        answer = until_closed(running.enter_context(line_to(hurried)))
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"\r\nRetry-After: 1\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
