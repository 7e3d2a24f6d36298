"""Parts of a chat request: messages, tools, tool choice and response format.

Knows OpenAI's names and types. Does not know how they are used.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ssd.server.body import Body, Int, Listed

MOST_MESSAGES = 1 << 14
MOST_TOOLS = 1 << 10


class MessageTextPart(Body):
    type: Literal["text"]
    text: str


class MessageFunctionCall(Body):
    name: str
    arguments: str


class MessageToolCall(Body):
    """A tool call of an earlier assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: MessageFunctionCall
    index: Int | None = None


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Listed[MessageTextPart] | None = None
    name: str | None = None
    tool_calls: Listed[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # Clients send back assistant messages unchanged, with these fields.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None


Messages = Annotated[list[ChatMessage], Field(fail_fast=True, max_length=MOST_MESSAGES)]


class Function(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Ignored: arguments follow the schema whenever a call is forced, and never otherwise."""


class Tool(Body):
    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)]


class ChosenFunction(Body):
    name: str


class ChosenTool(Body):
    type: Literal["function"]
    function: ChosenFunction


def _kind_of_choice(value: Any) -> str:
    return "Tool" if isinstance(value, dict | ChosenTool) else "Word"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")] | Annotated[ChosenTool, Tag("Tool")],
    Discriminator(_kind_of_choice),  # Makes error messages name the alternative that the client meant.
]


class JsonSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError('the type json_schema needs {"json_schema": {"schema": …}}')
        if self.type != "json_schema" and self.json_schema is not None:
            raise ValueError(f"json_schema has no meaning with the type {self.type}: use json_schema")
        return self
