"""What clients receive, in OpenAI's shapes. Plain typed values; see completions.py and chat.py."""

from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType


def data_frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The common root."""

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def framed(self) -> bytes:
        """As a server-sent event."""
        return data_frame(self.encoded())

    def having(self, **fields: Any) -> Self:
        """The same with some fields set; those that are None stay out."""
        return msgspec.structs.replace(
            self, **{name: value for name, value in fields.items() if value is not None}
        )


class RequestTimings(Answer, frozen=True, kw_only=True):
    """Seconds, as the engine saw them; of several prompts, those of the slowest."""

    queued: float
    first_token: float
    total: float
    per_output_token: float | None


class Misses(Answer, frozen=True, kw_only=True):
    late: int
    unknown: int
    unheard: int


class SpeculationUsage(Answer, frozen=True, kw_only=True):
    rounds: int
    drafted: int
    accepted: int
    accepted_per_round: float
    hits: int
    misses: Misses
    hit_rate: float | None
    ngram: int
    jit: int
    timings: RequestTimings


class PromptTokensDetails(Answer, frozen=True, kw_only=True):
    cached_tokens: int


class Usage(Answer, frozen=True, kw_only=True):
    """While an answer is still being written, only how many tokens there are."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    speculation: SpeculationUsage | UnsetType = UNSET


class TextLogprobs(Answer, frozen=True, kw_only=True):
    """The legacy shape: one entry for each token in each list."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Answer, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


class Completion(Answer, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET

    def with_usage(self, usage: Usage | None) -> "Completion":
        return msgspec.structs.replace(self, usage=usage)


class TopLogprob(Answer, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Answer, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer, frozen=True, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(Answer, frozen=True, kw_only=True):
    name: str
    arguments: str


class ToolCall(Answer, frozen=True, kw_only=True):
    index: int | UnsetType = UNSET
    """Only in streams."""
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(Answer, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(Answer, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ShownTree(Answer, frozen=True, kw_only=True):
    """Drafted tokens of several paths that one verification took."""

    start: int
    """Tokens of the answer before it."""
    tokens: list[str]
    parents: tuple[int, ...]
    """Of each token, the place of the one it follows, or -1."""
    branch: tuple[int, ...]
    """The places of the tokens that were accepted."""


class ChatChoice(Answer, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    origins: tuple[str, ...] | UnsetType = UNSET
    trees: list[ShownTree] | UnsetType = UNSET


class DeltaChoice(Answer, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    origins: tuple[str, ...] | UnsetType = UNSET
    trees: list[ShownTree] | UnsetType = UNSET


class ChatCompletion(Answer, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunk(Answer, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[DeltaChoice]
    usage: Usage | UnsetType | None = UNSET

    def with_usage(self, usage: Usage | None) -> "ChatChunk":
        return msgspec.structs.replace(self, usage=usage)
