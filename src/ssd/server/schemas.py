"""Request bodies. A field that is not listed here is an error, never ignored.

Knows OpenAI's and vLLM's names and types; ranges are checked by SamplingParams. `null` means the default, as
in OpenAI's API.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ssd.server.body import Biases, Body, Int, Listed, Metadata

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


def kind_of_choice(value: Any) -> str:
    return "Tool" if isinstance(value, dict | Body) else "Word"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Word")] | Annotated[ChosenTool, Tag("Tool")],
    Discriminator(kind_of_choice),  # Makes error messages name the alternative that the client meant.
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


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None
    """From vLLM: token counts with every chunk, for load generators."""

    @model_validator(mode="after")
    def _check_usage(self) -> "StreamOptions":
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats needs include_usage to be true")
        return self


class Ignorable(Body):
    """Fields of OpenAI's API without effect here. Values that would have an effect are refused."""

    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None
    """Ignored: nothing is ever stored."""
    service_tier: Literal["auto", "default"] | None = None


class StructuredOutputs(Body):
    """From vLLM: the grammar of the answer. Exactly one field must be set."""

    json_schema: str | dict[str, Any] | None = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = None
    choice: Listed[str] | None = None
    grammar: str | None = None


class SharedFields(Ignorable):
    """Fields that completions and chats share."""

    model: str | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    """From vLLM: only requests with the same salt share prompts in the prefix cache."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Int | None = None
    speculation: bool | None = None
    """False: decode without speculation. The tokens are the same."""
    draft: str | None = None
    """Name of the drafts to use. The tokens are the same with any draft."""
    stream: bool | None = None


class GenerationRequest(SharedFields):
    """Fields that completions and chats share."""

    stop: str | Listed[str] | None = None
    stop_token_ids: Listed[Int] | None = None
    min_tokens: Int | None = None
    max_tokens: Int | None = None
    ignore_eos: bool | None = None
    logit_bias: Biases | None = None
    bad_words: Listed[str] | None = None
    prompt_logprobs: Int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    n: Int | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_as_it_goes(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @model_validator(mode="after")
    def _check_stream(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs are not available in streams: set stream to false")
        return self


class CompletionRequest(GenerationRequest):
    prompt: str | list[Any]
    """Text, token ids, or a list of either; see prompts.py."""
    echo: bool | None = None
    logprobs: Int | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def only_scores(self) -> bool:
        """Whether only the prompts and their log-probabilities are returned."""
        return self.max_tokens == 0 and bool(self.echo)

    @model_validator(mode="after")
    def _check_echo(self) -> "CompletionRequest":
        if self.stream and self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not available in streams: set stream to false")
        return self


class ChatCompletionRequest(GenerationRequest):
    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    max_completion_tokens: Int | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """False: at most one tool call per answer."""
    response_format: ResponseFormat | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Arguments for the chat template, such as {"enable_thinking": false}."""
    reasoning_effort: Effort | None = None
    """Passed to the chat template; `none` also sets enable_thinking=false."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Passed to the chat template."""
    modalities: Listed[Literal["text"]] | None = None
    return_origins: bool | None = None
    """Return the origin of each token: hit, backup or target."""
    return_trees: bool | None = None
    """Return the verified trees and the accepted branch of each."""

    @property
    def forces_call(self) -> bool:
        """Whether the answer has to be a tool call."""
        return self.tool_choice not in (None, "none", "auto")

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self
