"""Responses of POST /v1/responses in OpenAI's format, and their items and events made from chat chunks.

Knows the order of events that clients expect. Sequence numbers are assigned in responses.py.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ssd.server.answers import Answer, SpeculationUsage, TokenLogprob, ToolCall, data_frame

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningPart(Answer, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(Answer, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    content: Sequence[OutputText] = ()


class ReasoningItem(Answer, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status = "in_progress"
    summary: tuple[()] = ()
    content: Sequence[ReasoningPart] = ()


class CallItem(Answer, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


Item = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(Answer, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Answer, frozen=True, kw_only=True):
    reasoning_tokens: int = 0
    """Always 0: reasoning tokens are not counted separately."""


class ResponseUsage(Answer, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int
    speculation: SpeculationUsage | UnsetType = UNSET


class IncompleteDetails(Answer, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseAnswer(Answer, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: Status = "in_progress"
    output: Sequence[Item] = ()
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    # Fields of the request, which OpenAI repeats in the response.
    instructions: str | None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    tools: list[dict[str, Any]]
    tool_choice: Any = "auto"
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any]
    reasoning: dict[str, Any]
    user: str | None = None
    previous_response_id: None = None
    store: Literal[False] = False
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


class ResponseEvent(Answer, frozen=True, kw_only=True):
    """An event of a stream; its type decides which fields are set."""

    type: str
    sequence_number: int
    response: ResponseAnswer | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | ReasoningPart | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: Sequence[TokenLogprob] | UnsetType = UNSET
    message: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    param: str | UnsetType | None = UNSET

    def framed(self) -> bytes:
        return f"event: {self.type}\n".encode() + data_frame(msgspec.json.encode(self))


Events = list[ResponseEvent]


class GrowingItems:
    def __init__(self) -> None:
        self.done: list[Item] = []
        self._open: _Text | None = None
        self._scores: list[TokenLogprob] = []
        """Log-probabilities of tokens whose text has not arrived yet; those of tool calls are dropped."""

    def add(
        self, *, reasoning: str, content: str, calls: Sequence[ToolCall], scores: Sequence[TokenLogprob]
    ) -> Events:
        """The events for one chunk of a chat."""
        events: Events = []
        if reasoning:
            events += self._into("reasoning") + self._grow(reasoning, ())
        self._scores += scores
        if content or (self._scores and self._open is not None and self._open.kind == "message"):
            events += self._into("message") + self._grow(content, self._scores)
            self._scores = []
        for call in calls:
            events += self._close("completed") + self._called(call)
        return events

    def finish(self, status: Status) -> Events:
        """Close the open item with `status`. A response without items gets an empty message."""
        begun = [] if self.done or self._open else self._into("message")
        return begun + self._close(status)

    def _into(self, kind: str) -> Events:
        if self._open is not None and self._open.kind == kind:
            return []
        events = self._close("completed")
        self._open = _Text(kind, len(self.done))
        return events + self._open.begun()

    def _grow(self, text: str, scores: Sequence[TokenLogprob]) -> Events:
        assert self._open is not None
        return [self._open.grown(text, scores)]

    def _close(self, status: Status) -> Events:
        if self._open is None:
            return []
        text, self._open = self._open, None
        events = text.ended(status)
        self.done.append(text.item(status))
        return events

    def _called(self, call: ToolCall) -> Events:
        place = len(self.done)
        begun = CallItem(id=_new_id("fc"), call_id=call.id, name=call.function.name)
        arguments = call.function.arguments
        item = CallItem(
            id=begun.id, call_id=call.id, name=begun.name, arguments=arguments, status="completed"
        )
        self.done.append(item)
        where: dict[str, Any] = {"output_index": place, "item_id": item.id}
        return [
            _event("response.output_item.added", output_index=place, item=begun),
            _event("response.function_call_arguments.delta", **where, delta=arguments),
            _event("response.function_call_arguments.done", **where, arguments=arguments, name=item.name),
            _event("response.output_item.done", output_index=place, item=item),
        ]


class _Text:
    """A message or reasoning item while its text is streamed."""

    def __init__(self, kind: str, place: int) -> None:
        self.kind = kind
        self._text = ""
        self._scores: list[TokenLogprob] = []
        self._id = _new_id("msg" if kind == "message" else "rs")
        self._place = place
        self._name = "response.output_text" if kind == "message" else "response.reasoning_text"

    def begun(self) -> Events:
        item = MessageItem(id=self._id) if self.kind == "message" else ReasoningItem(id=self._id)
        return [
            _event("response.output_item.added", output_index=self._place, item=item),
            _event("response.content_part.added", **self._where(), part=self._part()),
        ]

    def grown(self, text: str, scores: Sequence[TokenLogprob]) -> ResponseEvent:
        self._text += text
        self._scores += scores
        return _event(f"{self._name}.delta", **self._where(), delta=text, **self._scored(scores))

    def ended(self, status: Status) -> Events:
        return [
            _event(f"{self._name}.done", **self._where(), text=self._text, **self._scored(self._scores)),
            _event("response.content_part.done", **self._where(), part=self._part()),
            _event("response.output_item.done", output_index=self._place, item=self.item(status)),
        ]

    def item(self, status: Status) -> Item:
        part = self._part()
        if isinstance(part, OutputText):
            return MessageItem(id=self._id, status=status, content=(part,))
        return ReasoningItem(id=self._id, status=status, content=(part,))

    def _part(self) -> OutputText | ReasoningPart:
        if self.kind == "message":
            return OutputText(text=self._text, logprobs=tuple(self._scores))
        return ReasoningPart(text=self._text)

    def _where(self) -> dict[str, Any]:
        return {"output_index": self._place, "item_id": self._id, "content_index": 0}

    def _scored(self, scores: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"logprobs": tuple(scores)} if self.kind == "message" else {}


def _event(kind: str, **fields: Any) -> ResponseEvent:
    return ResponseEvent(type=kind, sequence_number=0, **fields)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
