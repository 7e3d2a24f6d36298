"""Runs a request that generates, from its preparation to the last byte of its answer.

Starlette calls it after the route has returned, so the request's body is freed before the answer starts.
Knows the gate and client disconnects. Does not know what is generated: that is the job's part.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from fastapi import Response
from starlette.types import Receive, Scope, Send

from ssd.engine.outputs import RequestOutput
from ssd.engine.request import Request
from ssd.server.answers import Answer
from ssd.server.connection import ClientGoneError, Framing, send_events, unless_gone
from ssd.server.logprobs import num_scores
from ssd.server.serving import Serving
from ssd.worker.async_llm import off_loop


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

    @property
    def framing(self) -> Framing: ...

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
                    await send_events(send, job.chunks(), job.framing, serving.config.keep_alive_seconds)
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
