"""The guard on vLLM's routes: alone, and around the real app, every route of which is tried without a key."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ssd.integrations.vllm.guard import GUARD, OPEN_PATHS, ApiKeyGuard, keys_after, keys_in

WITH_KEY = {"authorization": "Bearer one"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_VLLM_API_KEYS", '["one", "zwölf"]')


def answer(path: str, headers: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    """What is sent for a request; the app behind the guard answers 200."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        raise AssertionError("nothing is read of who has no key")

    raw = [(name.encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, **more}
    asyncio.run(ApiKeyGuard(app)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (WITH_KEY, 200),
        ({"authorization": "bearer  one "}, 200),
        ({"authorization": "Bearer zwölf"}, 200),
        ({"authorization": "Bearer two"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"authorization": "one"}, 401),
        ({"x-api-key": "one"}, 401),
        ({"origin": "http://elsewhere"}, 401),
    ],
)
def test_who_comes_in(headers: dict[str, str], status: int) -> None:
    assert answer("/invocations", headers)[0]["status"] == status


@pytest.mark.parametrize(
    "path", ["/livez", "/ready", "/health/", "//health", "/v1/health", "/healthz", "/health/../tokenize"]
)
def test_only_exact_paths_are_open(path: str) -> None:
    assert answer(path, {})[0]["status"] == 401


def test_open_paths_and_what_a_browser_asks_first() -> None:
    assert {answer(path, {}, method="GET")[0]["status"] for path in OPEN_PATHS} == {200}
    assert answer("/base/health", {}, root_path="/base")[0]["status"] == 200
    assert answer("/tokenize", {}, method="OPTIONS")[0]["status"] == 401
    asked = {"origin": "http://page", "access-control-request-method": "POST"}
    assert answer("/tokenize", asked, method="OPTIONS")[0]["status"] == 200
    assert answer("/tokenize", asked)[0]["status"] == 401


def test_websockets() -> None:
    assert answer("/health", {}, type="websocket") == [
        {"type": "websocket.close", "code": 1008, "reason": "an API key is needed"}
    ]
    told = answer("/v1/realtime", {}, type="websocket", extensions={"websocket.http.response": {}})
    assert (told[0]["type"], told[0]["status"]) == ("websocket.http.response.start", 401)
    assert answer("/v1/realtime", WITH_KEY, type="websocket")[0]["status"] == 200


def test_keys_come_by_the_environment() -> None:
    assert keys_in({"VLLM_API_KEY": "a"}) == ("a",)
    assert keys_in({"VLLM_API_KEY": "a", "SSD_VLLM_API_KEYS": '["b", "c"]'}) == ("b", "c")
    for nothing in ({}, {"VLLM_API_KEY": ""}, {"SSD_VLLM_API_KEYS": "[]"}, {"SSD_VLLM_API_KEYS": '[""]'}):
        with pytest.raises(ValueError, match="knows no key"):
            keys_in(nothing)


def test_keys_that_are_given_to_vllm_itself() -> None:
    assert keys_after(["--enforce-eager", "--api-key", "a", "b", "--port", "8"]) == ("a", "b")
    assert keys_after(["--api_key=a", "--api-key", "b"]) == ("a", "b")
    assert keys_after(["--served-model-name", "a"]) == ()


def every_route(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Kind or method, and path, of all that an app answers."""
    from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

    for route in routes:
        assert isinstance(route, BaseRoute)
        if isinstance(route, Mount):
            yield "GET", f"{prefix}{route.path}/"
            yield from every_route(route.routes or [], prefix + route.path)
        elif isinstance(route, Route):
            yield from ((method, prefix + route.path) for method in route.methods or {"GET"})
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", prefix + route.path
        else:
            yield from every_route(route.routes, prefix)  # type: ignore[attr-defined]


@pytest.mark.vllm
def test_every_route_of_the_real_app_asks_for_a_key() -> None:
    pytest.importorskip("vllm")
    from starlette.testclient import TestClient
    from starlette.websockets import WebSocketDisconnect
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = ["--middleware", GUARD, "--model", "m"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    app = build_app(args, supported_tasks=("generate", "realtime", "transcription"))
    client = TestClient(app, raise_server_exceptions=False)
    found = sorted(set(every_route(app.routes)))
    paths = {path for _, path in found}
    assert {"/invocations", "/tokenize", "/metrics", "/docs", "/openapi.json", "/v1/completions"} <= {
        path.rstrip("/") for path in paths
    }
    assert any(kind == "WEBSOCKET" for kind, _ in found)
    for kind, path in found:
        named = path.replace("{", "").replace("}", "")
        if kind == "WEBSOCKET":
            with pytest.raises(WebSocketDisconnect), client.websocket_connect(named):
                pass
            continue
        status = client.request(kind, named, follow_redirects=False).status_code
        assert (status == 401) == (path not in OPEN_PATHS), f"{kind} {path}: {status}"
    assert client.get("/openapi.json", headers=WITH_KEY).status_code == 200
    assert json.loads(client.get("/nowhere").content)["error"]["code"] == "invalid_api_key"
