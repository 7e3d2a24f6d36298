"""Runs a request that generates, from its preparation to the last byte of its answer.

Starlette calls it after the route has returned, so the request's body is freed before the answer starts.
Knows the gate, client disconnects and server-sent events. Does not know what is generated: that is the job's
part.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from ssd.engine.outputs import RequestOutput
from ssd.engine.request import Request
from ssd.errors import EngineDeadError, InvalidRequestError
from ssd.server.answers import Answer, data_frame
from ssd.server.errors import ApiError, as_api_error
from ssd.server.logprobs import num_scores
from ssd.server.serving import Serving
from ssd.worker.async_llm import off_loop

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


_DONE = data_frame(b"[DONE]")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""X-Accel-Buffering stops nginx from buffering events."""
_SIGN_OF_LIFE = b": still here\n\n"
"""A comment, which clients ignore. It keeps proxies from closing an idle connection."""


async def send_events(send: Send, events: AsyncGenerator[Answer, None], keep_alive_seconds: float) -> None:
    """Send what the generator yields as server-sent events. An error is sent as an event too."""
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    try:
        async with aclosing(or_silence(events, keep_alive_seconds)) as timed_events:
            async for event in timed_events:
                await _send_frame(send, _SIGN_OF_LIFE if event is None else event.framed())
    except (ApiError, EngineDeadError, InvalidRequestError) as error:
        await _send_frame(send, data_frame(as_api_error(error).body))
    except Exception:
        logger.exception("a stream failed")
        await _send_frame(send, data_frame(ApiError(500, "the server failed on this request").body))
    await _send_frame(send, _DONE)
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


class Job(Protocol):
    """A checked request and how to answer it, as a whole or as a stream."""

    @property
    def body(self) -> Any: ...

    @property
    def requests(self) -> Sequence[Request]: ...

    @property
    def finished(self) -> Sequence[RequestOutput]: ...

    @property
    def num_generated(self) -> int:
        """Number of tokens streamed so far."""
        ...

    async def whole(self) -> Answer: ...

    def chunks(self) -> AsyncGenerator[Answer, None]: ...


class Answering(Response):
    def __init__(self, serving: Serving, make: Callable[[], Awaitable[Job]]) -> None:
        super().__init__()
        self._serving, self._make = serving, make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._run(scope, receive, send))
        except ClientGoneError:
            scope["state"]["is_gone"] = True

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving = self._serving
        with serving.gate.prepare():
            job = await self._make()
        with serving.gate.enter(job.requests):
            try:
                if job.body.stream:
                    await send_events(send, job.chunks(), serving.config.keep_alive_seconds)
                else:
                    answer = await job.whole()
                    encoded = await off_loop(num_scores(job.finished), answer.encoded)
                    await Response(encoded, media_type="application/json")(scope, receive, send)
            finally:
                scope["state"]["fields"].update(_log_fields(job))


def _log_fields(job: Job) -> dict[str, object]:
    outputs = [each for output in job.finished for each in output.outputs]
    num_generated = sum(len(each.token_ids) for each in outputs)
    return {
        "stream": bool(job.body.stream),
        "prompt_tokens": sum(len(request.prompt_token_ids) for request in job.requests),
        # An aborted stream has no finished output: use the number of tokens that were sent.
        "completion_tokens": max(num_generated, job.num_generated),
        "finish_reasons": [each.finish_reason for each in outputs],
        "accepted_tokens": sum(each.speculation.accepted for each in outputs),
        "rounds": sum(each.speculation.rounds for each in outputs),
    }
