"""POST /v1/responses: OpenAI's newer chat API, as a whole or as a stream. Nothing is stored.

A ChatJob does the work; its message or chunks are converted to a response's items and events.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from ssd.engine.outputs import RequestOutput
from ssd.engine.request import Request
from ssd.server.answering import Framing
from ssd.server.answers import AssistantMessage, ChatLogprobs, Delta, Usage
from ssd.server.chat import ChatJob
from ssd.server.errors import ApiError
from ssd.server.responses_input import ResponsesRequest, chat_request
from ssd.server.responses_output import (
    Events,
    GrowingItems,
    IncompleteDetails,
    InputTokensDetails,
    ResponseAnswer,
    ResponseEvent,
    ResponseUsage,
    Status,
)
from ssd.server.serving import Caller, Serving


@dataclass(slots=True)
class ResponseJob:
    body: ResponsesRequest
    chat: ChatJob
    answer_id: str
    _items: GrowingItems = field(default_factory=GrowingItems)
    _num_events: int = 0

    @classmethod
    async def make(cls, serving: Serving, body: ResponsesRequest, caller: Caller) -> "ResponseJob":
        chat = await ChatJob.make(serving, chat_request(body), caller)
        return cls(body, chat, f"resp_{caller.request_id}")

    @property
    def requests(self) -> Sequence[Request]:
        return self.chat.requests

    @property
    def finished(self) -> list[RequestOutput]:
        return self.chat.finished

    @property
    def num_generated(self) -> int:
        return self.chat.num_generated

    @property
    def framing(self) -> Framing:
        """Streams end with their last event, without [DONE]."""
        return Framing(b"", self._failure)

    async def whole(self) -> ResponseAnswer:
        answer = await self.chat.whole()
        choice = answer.choices[0]
        self._take(choice.message, choice.logprobs)
        return self._ended(choice.finish_reason, answer.usage)[1]

    async def chunks(self) -> AsyncGenerator[ResponseEvent, None]:
        for kind in ("response.created", "response.in_progress"):
            yield self._numbered(_about(kind, self._response()))
        reason, usage = "", None
        async with aclosing(self.chat.chunks()) as chunks:
            async for chunk in chunks:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    reason = choice.finish_reason or reason
                    for event in self._take(choice.delta, choice.logprobs):
                        yield self._numbered(event)
        events, answer = self._ended(reason, usage)
        for event in (*events, _about(f"response.{answer.status}", answer)):
            yield self._numbered(event)

    def _take(self, message: AssistantMessage | Delta, logprobs: ChatLogprobs | None) -> Events:
        return self._items.add(
            reasoning=message.reasoning_content or "",
            content=message.content or "",
            calls=message.tool_calls or (),
            scores=() if logprobs is None else logprobs.content,
        )

    def _ended(self, reason: str, usage: Usage | None) -> tuple[Events, ResponseAnswer]:
        is_cut = reason == "length"
        status: Status = "incomplete" if is_cut else "completed"
        events = self._items.finish(status)
        answer = self._response(
            status=status,
            output=tuple(self._items.done),
            incomplete_details=IncompleteDetails() if is_cut else None,
            usage=_usage(usage),
        )
        return events, answer

    def _response(self, **state: Any) -> ResponseAnswer:
        body, choice = self.body, self.body.tool_choice
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        reasoning = body.reasoning
        return ResponseAnswer(
            id=self.answer_id,
            created_at=self.chat.created,
            model=self.chat.serving.model_name,
            instructions=body.instructions,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            tools=[{"parameters": {}, "strict": False, **tool} for tool in tools],
            tool_choice=(choice or "auto") if isinstance(choice, str | None) else choice.model_dump(),
            temperature=body.temperature,
            top_p=body.top_p,
            max_output_tokens=body.max_output_tokens,
            text={"format": {"type": "text"}, **_dumped(body.text)},
            reasoning=_dumped(reasoning),
            user=body.user,
            **state,
        )

    def _numbered(self, event: ResponseEvent) -> ResponseEvent:
        self._num_events += 1
        return replace(event, sequence_number=self._num_events - 1)

    def _failure(self, error: ApiError) -> bytes:
        event = ResponseEvent(
            type="error", sequence_number=0, message=error.message, code=error.code, param=error.param
        )
        return self._numbered(event).framed()


def _about(kind: str, response: ResponseAnswer) -> ResponseEvent:
    return ResponseEvent(type=kind, sequence_number=0, response=response)


def _dumped(settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings is not None:
        found = settings.model_dump(exclude_none=True, by_alias=True)
    return found


def _usage(usage: Usage | None) -> ResponseUsage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    cached = 0 if details is UNSET else details.cached_tokens
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        speculation=usage.speculation,
    )
