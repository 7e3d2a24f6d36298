"""The request body of POST /v1/responses, in OpenAI's names and types, without what needs stored responses.

Does not know chats: responses_input.py converts it to a chat request. Clients send items of earlier responses
back unchanged, so their ids and statuses are accepted and ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ssd.server.body import Body, Int, Listed
from ssd.server.chat_parts import MOST_MESSAGES, MOST_TOOLS
from ssd.server.schemas import Effort, SharedFields

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


class FunctionTool(Body):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


FunctionTools = Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MOST_TOOLS)]


class ChosenFunctionTool(Body):
    type: Literal["function"]
    name: str


def _kind_of_choice(value: Any) -> str:
    return "Tool" if isinstance(value, dict) else "Word"


FunctionChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")] | Annotated[ChosenFunctionTool, Tag("Tool")],
    Discriminator(_kind_of_choice),
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
