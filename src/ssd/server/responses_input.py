"""Converts the body of POST /v1/responses to a chat request.

Knows both formats.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ssd.server.chat_parts import (
    ChatMessage,
    ChosenFunction,
    ChosenTool,
    Function,
    JsonSchema,
    MessageFunctionCall,
    MessageToolCall,
    ResponseFormat,
    Tool,
)
from ssd.server.response_parts import (
    ChosenFunctionTool,
    FunctionTool,
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    InputReasoning,
    InputText,
    ResponsesRequest,
    TextFormat,
)
from ssd.server.schemas import ChatCompletionRequest, SharedFields, StreamOptions

_SAME = (*SharedFields.__annotations__, "top_logprobs", "parallel_tool_calls", "chat_template_kwargs")
"""Fields with the same name and meaning in both."""


def chat_request(body: ResponsesRequest) -> ChatCompletionRequest:
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice
    same: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    if isinstance(choice, ChosenFunctionTool):
        chosen: Any = ChosenTool(type="function", function=ChosenFunction(name=choice.name))
    else:
        chosen = choice
    return ChatCompletionRequest(
        **same,
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs(body) or None,
        tools=None if body.tools is None else [_tool(tool) for tool in body.tools],
        tool_choice=chosen,
        response_format=None if text is None or text.format is None else _format(text.format),
        verbosity=None if text is None else text.verbosity,
        reasoning_effort=None if reasoning is None else reasoning.effort,
        stream_options=StreamOptions(include_usage=True) if body.stream else None,
    )


def wants_logprobs(body: ResponsesRequest) -> bool:
    return body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())


def _tool(tool: FunctionTool) -> Tool:
    function = Function(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)


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
