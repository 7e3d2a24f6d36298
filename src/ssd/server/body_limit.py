"""Bodies of requests: read where one is used, within a size, a deadline and a bound on all together.

Knows ASGI. What is in a body is checked elsewhere.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ssd.config.server import ServerConfig
from ssd.server.errors import ApiError

_LARGEST_AT_ONCE = 8
"""Bodies of the largest size that may be held at once, or more that are smaller."""
_DISCARDED_BYTES = 64 << 20


class BodyLimit:
    """Reads the body and hands it on in one piece; it counts until it is used, or the request is over."""

    def __init__(self, app: ASGIApp, config: ServerConfig, paths: Collection[str]) -> None:
        """`paths`: of the routes that use a body. Others are answered without a look at it."""
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
    """`on_used`: whoever asks for what comes after the body has done with it."""
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
    """What is still being sent, within reason: a connection closed on it would take the answer along."""
    size = 0
    while size < _DISCARDED_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            return


class _BodyReader:
    """One body, as it comes."""

    def __init__(self, hall: "_HeldBodies", most: int) -> None:
        self._hall, self._most = hall, most
        self.size = 0
        self.is_ended = False
        """To make room for others."""
        self._timeout: asyncio.Timeout | None = None
        """While it is read."""

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
        """None: it is too large."""
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                return await self._parts(receive)
        except TimeoutError:
            message = f"the body was not here in time: it has {seconds:g} s (body_seconds), less if many send"
            raise ApiError(408, message, code="body_too_slow") from None
        finally:
            self._timeout = None

    async def _parts(self, receive: Receive) -> bytes | None:
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""  # The next to ask hears of it again.
            part: bytes = message.get("body", b"")
            if self.size + len(part) > self._most:
                return None
            self._hall.hold(self, len(part))
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)


class _HeldBodies:
    """All bodies that are held. Where they are too much, the one that is read longest has to go."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._readers: dict[_BodyReader, None] = {}
        """In the order in which they came."""

    def hold(self, reader: _BodyReader, size: int) -> None:
        if reader.is_ended:
            raise TimeoutError  # It had been woken already when its time was taken away.
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
            "the bodies of other requests leave no room for this one: try again soon",
            code="no_room",
            headers={"Retry-After": "1"},
        )
