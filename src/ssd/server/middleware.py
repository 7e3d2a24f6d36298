"""Middleware for every HTTP request: request id and access log, API keys, Host header.

Plain ASGI: Starlette's middleware classes would hide a client's disconnect from the routes.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ssd.server.errors import ApiError

logger = logging.getLogger("ssd.server.access")

_CLIENT_GONE = 499
"""nginx's status for a client that disconnected before its answer; used in the log only."""
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LONGEST_PATH = 200
"""Longest path in the log."""
OPEN_PATHS = ("/health", "/livez", "/ready")


class AccessLog:
    """Outermost middleware: assigns the request id, and logs one line when the request ends."""

    def __init__(self, app: ASGIApp, note: Callable[[str, int], None]) -> None:
        self._app, self._note = app, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, fields={})

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).append("X-Request-Id", request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if state.get("is_gone"):
                status = status or _CLIENT_GONE
            self._note(scope["path"], status)
            fields = {
                "request_id": request_id,
                "method": scope["method"],
                "path": scope["path"][:_LONGEST_PATH],
                "status": status or None,
                "seconds": round(time.monotonic() - started, 4),
                "client": (scope.get("client") or ("",))[0],
                **state["fields"],
            }
            if state.get("is_gone"):
                fields["disconnected"] = True
            quiet = scope["path"] in (*OPEN_PATHS, "/metrics")
            logger.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})


class ApiKeys:
    """Requires `Authorization: Bearer KEY` if the server has keys.

    The chat page also accepts the key as a basic-auth password, which the browser asks for. Such a password
    is refused on cross-site requests, to which browsers add it by themselves.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._is_known(scope):
            error = ApiError(401, "an API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
            is_page = scope["path"] == "/"
            error.headers["WWW-Authenticate"] = (
                'Basic realm="the API key is the password"' if is_page else "Bearer"
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        if not self._keys:
            return True
        offered = _offered_key(Headers(scope=scope))
        # Compare with all keys in constant time, so that the time reveals nothing about them.
        matches = [hmac.compare_digest(offered, key) for key in self._keys]
        scope.setdefault("state", {})["tenant"] = hashlib.blake2b(offered, digest_size=16).hexdigest()
        return any(matches)


def _offered_key(headers: Headers) -> bytes:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip().encode("latin-1", errors="replace")
    # A browser sends the password with any request, but says which site made the request.
    if scheme.lower() == "basic" and headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        try:
            return base64.b64decode(given, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


class KnownHosts:
    """Refuses foreign Host headers on a server that listens on localhost without API keys.

    This prevents DNS rebinding, where another site lets its own name resolve to this machine. A server with
    keys, or one that other machines can reach, accepts any Host header.
    """

    def __init__(self, app: ASGIApp, host: str, keys: Sequence[str]) -> None:
        self._app, self._is_strict = app, not keys and _is_local(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = Headers(scope=scope).get("host", "localhost") if scope["type"] == "http" else "localhost"
        if self._is_strict and not _is_local(_without_port(name)):
            reason = f"this server is for this machine only, and {name[:100]!r} is not its name"
            error = ApiError(403, f"{reason}: use --host or --api-key", code="unknown_host")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]


def _is_local(name: str) -> bool:
    name = name.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
