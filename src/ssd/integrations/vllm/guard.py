"""Requires an API key on every route of vLLM's server, as a `--middleware` of vLLM.

vLLM's own check covers /v1 and a few more prefixes; /invocations, /tokenize, /metrics and others stay open.
Plain ASGI: needs neither vLLM nor a web framework. Keys come by the environment, never by an argument, which
other users of the machine could read.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

GUARD = "ssd.integrations.vllm.guard.ApiKeyGuard"
KEYS = "SSD_VLLM_API_KEYS"
"""A JSON list of keys; without it, vLLM's own variable holds the one key."""
KEY = "VLLM_API_KEY"
OPEN_PATHS = ("/health",)
"""vLLM's only path for health checks."""

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]
_REFUSAL = json.dumps(
    {
        "error": {
            "message": "an API key is needed: Authorization: Bearer KEY",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
    }
).encode()
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_REFUSAL)).encode()),
    (b"www-authenticate", b"Bearer"),
]


def keys_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys in the environment. Raises ValueError if there are none, which would leave the server open."""
    listed = json.loads(environment[KEYS]) if environment.get(KEYS) else [environment.get(KEY, "")]
    if not listed or not all(isinstance(key, str) and key for key in listed):
        raise ValueError(f"{GUARD} knows no key: set {KEY}, or {KEYS} to a JSON list of keys")
    return tuple(listed)


def keys_after(flags: Sequence[str]) -> tuple[str, ...]:
    """Keys in vLLM's own flags: `--api-key ONE TWO`."""
    found: list[str] = []
    is_key = False
    for word in flags:
        name, _, value = word.partition("=")
        if word.startswith("-"):
            is_key = name.replace("_", "-") == "--api-key"
            found += [value] if is_key and value else []
        elif is_key:
            found.append(word)
    return tuple(found)


class ApiKeyGuard:
    def __init__(self, app: _App) -> None:
        self._app = app
        self._known = [_digest(key.encode()) for key in keys_in(os.environ)]

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send, "http.response")
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await _refuse(send, "websocket.http.response")
        else:
            # Closing before accepting: servers answer with 403.
            await send({"type": "websocket.close", "code": 1008, "reason": "an API key is needed"})

    def _may_pass(self, scope: _Scope) -> bool:
        headers = scope["headers"]
        path = scope["path"].removeprefix(scope.get("root_path") or "")
        if scope["type"] == "http" and (path in OPEN_PATHS or _is_preflight(scope["method"], headers)):
            return True
        offered = _digest(_offered(headers))
        # Compare with all keys in constant time, so that the time reveals nothing about them.
        matches = [hmac.compare_digest(offered, known) for known in self._known]
        return any(matches)


def _digest(key: bytes) -> bytes:
    """A digest of fixed length, so that comparing does not reveal a key's length."""
    return hashlib.sha256(key).digest()


def _offered(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    given = next((value for name, value in headers if name.lower() == b"authorization"), b"")
    scheme, _, key = given.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _is_preflight(method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether this is a CORS preflight, which browsers send without a key and which reaches no route."""
    names = {name.lower() for name, _ in headers}
    return method == "OPTIONS" and {b"origin", b"access-control-request-method"} <= names


async def _refuse(send: _Send, kind: str) -> None:
    await send({"type": f"{kind}.start", "status": 401, "headers": _HEADERS})
    await send({"type": f"{kind}.body", "body": _REFUSAL})
