"""Sends server-sent events, and cancels work when the client disconnects.

Knows ASGI's receive and send.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive, Send

from ssd.errors import EngineDeadError, InvalidRequestError
from ssd.server.answers import Answer, data_frame
from ssd.server.errors import ApiError, engine_is_dead, refusal

logger = logging.getLogger(__name__)
T = TypeVar("T")


class ClientGoneError(Exception):
    """The client disconnected before its answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancel `work` and raise ClientGoneError."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        # Wait for cancelled tasks: they have cleanup of their own to run.
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream ends, and how it reports an error."""

    ending: bytes
    failure: Callable[[ApiError], bytes]


COMPLETIONS = Framing(data_frame(b"[DONE]"), lambda error: data_frame(error.body))
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""X-Accel-Buffering stops nginx from buffering events."""
_SIGN_OF_LIFE = b": still here\n\n"
"""A comment, which clients ignore. It keeps proxies from closing an idle connection."""


async def send_events(
    send: Send, events: AsyncGenerator[Answer, None], framing: Framing, keep_alive_seconds: float
) -> None:
    """Send what the generator yields as server-sent events. An error is sent as an event too."""
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    try:
        async with aclosing(or_silence(events, keep_alive_seconds)) as timed_events:
            async for event in timed_events:
                await _send_frame(send, _SIGN_OF_LIFE if event is None else event.framed())
    except (ApiError, EngineDeadError, InvalidRequestError) as error:
        await _send_frame(send, framing.failure(_as_api_error(error)))
    except Exception:
        logger.exception("a stream failed")
        await _send_frame(send, framing.failure(ApiError(500, "the server failed on this request")))
    await _send_frame(send, framing.ending)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def or_silence(events: AsyncGenerator[T, None], seconds: float) -> AsyncGenerator[T | None, None]:
    """The same events, and None whenever there was no event for `seconds`."""
    async with aclosing(events):
        while True:
            # A task: asyncio.wait_for would cancel the generator on timeout.
            following = asyncio.ensure_future(anext(events))
            try:
                while not (await asyncio.wait((following,), timeout=seconds))[0]:
                    yield None
                event = following.result()
            except StopAsyncIteration:
                return
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            yield event


async def _send_frame(send: Send, frame: bytes) -> None:
    await send({"type": "http.response.body", "body": frame, "more_body": True})


def _as_api_error(error: ApiError | EngineDeadError | InvalidRequestError) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDeadError):
        return engine_is_dead(error)
    return refusal(error)
