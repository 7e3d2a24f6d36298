"""Reads request bodies within a maximum size, a deadline and a limit on the memory of all bodies.

Knows ASGI. Does not know what is in a body.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ssd.config.server import ServerConfig
from ssd.server.errors import ApiError

_LARGEST_AT_ONCE = 8
"""Memory for bodies, as a multiple of the largest allowed body."""
_DISCARDED_BYTES = 64 << 20


class BodyLimit:
    """Middleware that reads the whole body before the app runs.

    A body counts towards the memory limit until the app has used it or the request ends.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, paths: Collection[str]) -> None:
        """`paths`: routes that use a body. The body of any other request is ignored."""
        self._app, self._paths = app, paths
        self._most, self._seconds = config.max_body_bytes, config.body_seconds
        self._hall = _HeldBodies(_LARGEST_AT_ONCE * config.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, _handing_on(b"", receive, lambda: None), send)
            return
        reader = _BodyReader(self._hall, self._most)
        try:
            try:
                handing_on = _handing_on(await self._body(reader, scope, receive), receive, reader.leave)
            except ApiError as error:
                error.headers["Connection"] = "close"
                await error.response()(scope, receive, send)
                return
            await self._app(scope, handing_on, send)
        finally:
            reader.leave()

    async def _body(self, reader: "_BodyReader", scope: Scope, receive: Receive) -> bytes:
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) <= self._most:
            body = await reader.read(receive, self._seconds)
            if body is not None:
                return body
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await _discard(receive)
        raise ApiError(413, f"the body is larger than {self._most} bytes", code="body_too_large")


def _handing_on(body: bytes, receive: Receive, on_used: Callable[[], None]) -> Receive:
    """A receive function for the body. `on_used` is called when the app asks for the next message."""
    left: bytes | None = body

    async def receive_body() -> Message:
        nonlocal left
        if left is None:
            on_used()
            return await receive()
        whole, left = left, None
        return {"type": "http.request", "body": whole, "more_body": False}

    return receive_body


async def _discard(receive: Receive) -> None:
    """Read and drop the rest of a body, up to a limit: closing earlier would reset the connection, and the
    client would not see the answer."""
    size = 0
    while size < _DISCARDED_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            return


class _BodyReader:
    """Reads one body."""

    def __init__(self, hall: "_HeldBodies", most: int) -> None:
        self._hall, self._most = hall, most
        self.size = 0
        self.is_ended = False
        """Whether it was cancelled to free memory for others."""
        self._timeout: asyncio.Timeout | None = None
        """Set while the body is being read."""

    @property
    def may_be_ended(self) -> bool:
        return self._timeout is not None and not self.is_ended

    def end(self) -> None:
        self.is_ended = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0.0)
        self.leave()

    def leave(self) -> None:
        self._hall.leave(self)

    async def read(self, receive: Receive, seconds: float) -> bytes | None:
        """The body, or None if it is too large."""
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                return await self._parts(receive)
        except TimeoutError:
            message = f"the body did not arrive within {seconds:g} s (body_seconds; less under load)"
            raise ApiError(408, message, code="body_too_slow") from None
        finally:
            self._timeout = None

    async def _parts(self, receive: Receive) -> bytes | None:
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""  # The app will receive the disconnect itself.
            part: bytes = message.get("body", b"")
            if self.size + len(part) > self._most:
                return None
            self._hall.hold(self, len(part))
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)


class _HeldBodies:
    """Bodies in memory. When they exceed the limit, the body that has been read for longest is cancelled."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._readers: dict[_BodyReader, None] = {}
        """In order of arrival."""

    def hold(self, reader: _BodyReader, size: int) -> None:
        if reader.is_ended:
            raise TimeoutError  # It was cancelled while a message was already on its way.
        self._readers[reader] = None
        while self._held + size > self._most:
            self._end_another(reader)
        reader.size += size
        self._held += size

    def leave(self, reader: _BodyReader) -> None:
        if self._readers.pop(reader, self) is None:
            self._held -= reader.size

    def _end_another(self, reader: _BodyReader) -> None:
        for other in self._readers:
            if other is not reader and other.may_be_ended:
                other.end()
                return
        raise ApiError(
            503,
            "the server has no memory left for this body: try again soon",
            code="no_room",
            headers={"Retry-After": "1"},
        )
