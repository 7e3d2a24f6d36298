"""The request body of POST /v1/responses, in OpenAI's names and types, and its conversion to a chat request.

What would need stored responses is refused. Clients send items of earlier responses back unchanged, so their
ids and statuses are accepted and ignored.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ssd.server.body import Body, Int, Listed
from ssd.server.schemas import (
    MOST_MESSAGES,
    MOST_TOOLS,
    ChatCompletionRequest,
    ChatMessage,
    ChosenFunction,
    ChosenTool,
    Effort,
    Function,
    JsonSchema,
    MessageFunctionCall,
    MessageToolCall,
    ResponseFormat,
    SharedFields,
    StreamOptions,
    Tool,
    kind_of_choice,
)

_STORED = "nothing is stored here: send the conversation in input"


class Returned(Body):
    """Fields that items of earlier responses have, and that are ignored."""

    id: str | None = None
    status: str | None = None


class InputText(Body):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputMessage(Returned):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Listed[InputText]
    phase: str | None = None


class InputCall(Returned):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(Returned):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Listed[InputText]


class ReasoningText(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class InputReasoning(Returned):
    type: Literal["reasoning"]
    summary: Listed[ReasoningText] | None = None
    content: Listed[ReasoningText] | None = None
    encrypted_content: None = None


_KINDS = {"function_call": "Call", "function_call_output": "CallOutput", "reasoning": "Reasoning"}


def _kind_of_item(value: Any) -> str:
    return _KINDS.get(str(value.get("type")), "Message") if isinstance(value, dict) else "Message"


InputItem = Annotated[
    Annotated[InputMessage, Tag("Message")]
    | Annotated[InputCall, Tag("Call")]
    | Annotated[InputCallOutput, Tag("CallOutput")]
    | Annotated[InputReasoning, Tag("Reasoning")],
    Discriminator(_kind_of_item),
]
InputItems = Annotated[list[InputItem], Field(fail_fast=True, max_length=MOST_MESSAGES)]


class FunctionTool(Function):
    type: Literal["function"]


FunctionTools = Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MOST_TOOLS)]


class ChosenFunctionTool(ChosenFunction):
    type: Literal["function"]


FunctionChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")] | Annotated[ChosenFunctionTool, Tag("Tool")],
    Discriminator(kind_of_choice),
]


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("the type json_schema needs a schema, and no other type may have one")
        return self


class TextSettings(Body):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningSettings(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted and ignored: reasoning is returned in full."""
    generate_summary: None = None


class ResponseStreamOptions(Body):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(SharedFields):
    input: str | InputItems
    instructions: str | None = None
    max_output_tokens: Int | None = None
    top_logprobs: Int | None = None
    tools: FunctionTools | None = None
    tool_choice: FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    stream_options: ResponseStreamOptions | None = None
    include: Listed[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    """`reasoning.encrypted_content` is accepted and ignored: reasoning is never hidden."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    max_tool_calls: Int | None = None
    """Ignored: it limits tools that run on the server, and there are none."""
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_stored(self) -> "ResponsesRequest":
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: {_STORED}")
        return self


_SAME = (*SharedFields.__annotations__, "top_logprobs", "parallel_tool_calls", "chat_template_kwargs")
"""Fields with the same name and meaning in both."""


def chat_request(body: ResponsesRequest) -> ChatCompletionRequest:
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice
    same: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    chosen: Any = choice
    if isinstance(choice, ChosenFunctionTool):
        chosen = ChosenTool(type="function", function=choice)
    tools = body.tools
    return ChatCompletionRequest(
        **same,
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=_wants_logprobs(body) or None,
        tools=None if tools is None else [Tool(type="function", function=each) for each in tools],
        tool_choice=chosen,
        response_format=None if text is None or text.format is None else _format(text.format),
        verbosity=None if text is None else text.verbosity,
        reasoning_effort=None if reasoning is None else reasoning.effort,
        stream_options=StreamOptions(include_usage=True) if body.stream else None,
    )


def _wants_logprobs(body: ResponsesRequest) -> bool:
    return body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())


def _format(wanted: TextFormat) -> ResponseFormat:
    if wanted.schema_ is None:
        return ResponseFormat(type=wanted.type)
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(name=wanted.name, schema=wanted.schema_))


def _messages(body: ResponsesRequest) -> list[ChatMessage]:
    messages = [] if body.instructions is None else [ChatMessage(role="system", content=body.instructions)]
    if isinstance(body.input, str):
        return [*messages, ChatMessage(role="user", content=body.input)]
    for is_answer, items in groupby(body.input, _is_of_an_answer):
        group = list(items)
        messages += [_answer(group)] if is_answer else map(_asked, group)
    return messages


def _is_of_an_answer(item: InputItem) -> bool:
    """Whether an item is part of an assistant message: a chat has its text, reasoning and calls in one
    message."""
    match item:
        case InputMessage():
            return item.role == "assistant"
        case InputCallOutput():
            return False
    return True


def _asked(item: InputItem) -> ChatMessage:
    if isinstance(item, InputCallOutput):
        return ChatMessage(role="tool", tool_call_id=item.call_id, content=_text(item.output))
    assert isinstance(item, InputMessage)
    return ChatMessage(role=item.role, content=_text(item.content))


def _answer(items: Sequence[InputItem]) -> ChatMessage:
    texts = [_text(each.content) for each in items if isinstance(each, InputMessage)]
    thoughts = [
        part.text for each in items if isinstance(each, InputReasoning) for part in each.content or ()
    ]
    calls = [
        MessageToolCall(
            id=each.call_id, function=MessageFunctionCall(name=each.name, arguments=each.arguments)
        )
        for each in items
        if isinstance(each, InputCall)
    ]
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) or None,
    )


def _text(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
