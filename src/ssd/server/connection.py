"""A client that may go away: work stops when it does.

Knows ASGI's receive and send. `EventStream` is a response of server-sent events.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from ssd.engine.async_llm import EngineDeadError
from ssd.errors import InvalidRequestError
from ssd.server.errors import ApiError, engine_is_dead, refusal

logger = logging.getLogger(__name__)
T = TypeVar("T")


class ClientGoneError(Exception):
    """Nobody is left to answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects: then ClientGoneError."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        # Whoever is cancelled here has its own finally to run: wait for it.
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events: what the generator yields, then [DONE]. A failure on the way is an event too."""

    def __init__(self, events: AsyncGenerator[bytes, None], *, on_end: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._on_end = events, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGoneError:
            scope.setdefault("state", {})["is_gone"] = True
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await _send_event(send, event)
            except (ApiError, EngineDeadError, InvalidRequestError) as error:
                await _send_event(send, _as_api_error(error).body)
            except Exception:
                logger.exception("a stream failed")
                await _send_event(send, ApiError(500, "the server failed on this request").body)
        await _send_event(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})


def _as_api_error(error: ApiError | EngineDeadError | InvalidRequestError) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDeadError):
        return engine_is_dead(error)
    return refusal(error)
