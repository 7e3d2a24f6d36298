"""Defaults, keys, logs and limits that SECURITY.md promises."""

import hmac
from pathlib import Path
from typing import Any

import pytest

from ssd.config.server import ServerConfig
from ssd.server.middleware import ApiKeys
from tests.server.process import ServerProcess, until

ROOT = Path(__file__).parents[2]


def test_this_machine_only() -> None:
    assert ServerConfig().host == "127.0.0.1"


async def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However early one matches, all are compared, and by the function that takes the same time for all; any
    of them opens a route."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(offered: bytes, key: bytes) -> bool:
        compared.append(key)
        return compare(offered, key)

    async def passed(scope: Any, _receive: Any, _send: Any) -> None:
        opened.append(scope["path"])

    async def nothing(*_: Any) -> Any: ...

    opened: list[str] = []
    monkeypatch.setattr(hmac, "compare_digest", counting)
    guard = ApiKeys(passed, ("first", "second", "third"))
    for key in ("first", "second", "third", "wrong"):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        await guard({"type": "http", "path": f"/{key}", "headers": headers}, nothing, nothing)
    assert compared == [b"first", b"second", b"third"] * 4
    assert opened == ["/first", "/second", "/third"]


def test_the_log_has_no_text(server: ServerProcess) -> None:
    secret = "xylophone sonata"
    headers = {"X-Request-Id": "no-text"}
    body = {"prompt": secret, "max_tokens": 2, "cache_salt": secret, "user": secret}
    server.http.post("/v1/completions", json=body, headers=headers)
    server.http.post("/v1/completions", json={**body, "stop": 3}, headers=headers)
    until(lambda: sum(line.get("request_id") == "no-text" for line in server.log) == 2)
    assert "xylophone" not in str(server.log)
