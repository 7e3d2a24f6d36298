"""Responses of POST /v1/responses in OpenAI's format: the response, its items, events of a stream."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ssd.server.answers import Answer, SpeculationUsage, TokenLogprob, data_frame

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
