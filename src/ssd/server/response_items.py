"""Converts chat chunks to a response's items (message, reasoning, function calls) and their stream events.

Knows the order of events that clients expect. Sequence numbers are assigned in responses.py.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from ssd.server.answers import TokenLogprob, ToolCall
from ssd.server.response_answers import (
    CallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningPart,
    ResponseEvent,
    Status,
)

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
