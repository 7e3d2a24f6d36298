"""Responses in OpenAI's format, as typed structs; completions.py and chat.py fill them in.

Here only `usage` is filled in: token counts, speculation statistics and timings.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from ssd.engine.outputs import RequestOutput, SpeculationStats
from ssd.engine.request import Request
from ssd.server.schemas import GenerationRequest


def data_frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of everything that is sent to clients."""

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def framed(self) -> bytes:
        """Encoded as a server-sent event."""
        return data_frame(self.encoded())

    def having(self, **fields: Any) -> Self:
        """A copy with the given fields set, except those that are None."""
        return msgspec.structs.replace(
            self, **{name: value for name, value in fields.items() if value is not None}
        )


class RequestTimings(Answer, frozen=True, kw_only=True):
    """Times in seconds, measured in the engine; of several prompts, those of the slowest one."""

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
    """Token counts; the details are set only when the answer is complete."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    speculation: SpeculationUsage | UnsetType = UNSET


class TextLogprobs(Answer, frozen=True, kw_only=True):
    """Log-probabilities of /v1/completions: each list has one entry per token."""

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
    """Set in streams only."""
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
    """A tree of drafted tokens that was verified in one step."""

    start: int
    """Number of tokens of the answer before the tree."""
    tokens: list[str]
    parents: tuple[int, ...]
    """Index of each token's parent, or -1 for a root."""
    branch: tuple[int, ...]
    """Indices of the accepted tokens."""


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


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """Usage of one response: its prompts and all their sequences."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_generated = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        total_tokens=num_prompt + num_generated,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(each.num_cached_tokens for each in outputs)
        ),
        speculation=_speculation(outputs),
    )


def usage_of_chunk(
    body: GenerationRequest, requests: Sequence[Request], num_generated: int
) -> Usage | UnsetType | None:
    """Usage of a chunk before the last: absent, null or the counts so far, as `stream_options` ask."""
    if not body.includes_usage:
        return UNSET
    if not body.counts_as_it_goes:
        return None
    num_prompt = sum(len(request.prompt_token_ids) for request in requests)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        total_tokens=num_prompt + num_generated,
    )


def _speculation(outputs: Sequence[RequestOutput]) -> SpeculationUsage:
    stats = [each.speculation for output in outputs for each in output.outputs]
    names = [each.name for each in dataclasses.fields(SpeculationStats)]
    total = SpeculationStats(**{name: sum(getattr(each, name) for each in stats) for name in names})
    return SpeculationUsage(
        rounds=total.rounds,
        drafted=total.drafted,
        accepted=total.accepted,
        accepted_per_round=total.accepted_per_round,
        hits=total.hits,
        misses=Misses(late=total.late, unknown=total.unknown, unheard=total.unheard),
        hit_rate=total.hit_rate,
        ngram=total.ngram,
        jit=total.jit,
        timings=_timings(outputs),
    )


def _timings(outputs: Sequence[RequestOutput]) -> RequestTimings:
    slowest = max((output.timings for output in outputs), key=lambda timings: timings.total)
    return RequestTimings(
        queued=slowest.queued,
        first_token=slowest.first_token,
        total=slowest.total,
        per_output_token=slowest.per_output_token,
    )
