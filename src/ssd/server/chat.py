"""POST /v1/chat/completions: answers a conversation, as a whole or as a stream."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import UnsetType

from ssd.engine.detokenizer import TextByToken
from ssd.engine.outputs import CompletionOutput, Increment, Origin, RequestOutput, VerifiedTree
from ssd.engine.prompts import Message
from ssd.engine.request import Request
from ssd.sampling import SamplingParams, TokenLogprobs
from ssd.server.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    Delta,
    DeltaChoice,
    FunctionCall,
    ShownTree,
    ToolCall,
    Usage,
    usage_of,
    usage_of_chunk,
)
from ssd.server.errors import ApiError
from ssd.server.grammars import chat_grammar
from ssd.server.logprobs import TokenTexts, chat_logprobs, num_scores, prompt_logprobs
from ssd.server.pieces import (
    Call,
    Chain,
    Content,
    OneCall,
    Piece,
    PlainText,
    Reasoning,
    ReasoningSplitter,
    Splitter,
    starts_inside,
    thinks,
)
from ssd.server.prompts import chat_params, conversation, template_options, weight
from ssd.server.schemas import ChatCompletionRequest
from ssd.server.serving import Caller, Serving, check_complete
from ssd.server.tools import KnownFormat, knows_tools, spelled_out, tool_format, tool_splitter
from ssd.worker.async_llm import off_loop


@dataclass(slots=True)
class ChatJob:
    """One chat request: its engine request, and how its output becomes a response."""

    serving: Serving
    body: ChatCompletionRequest
    params: SamplingParams
    request: Request
    calls: KnownFormat | None
    """Format of tool calls in the model's text; None: the text is not searched for calls."""
    answer_id: str
    created: int = field(default_factory=lambda: int(time.time()))
    finished: list[RequestOutput] = field(default_factory=list)
    num_generated: int = 0
    """Number of tokens streamed so far."""

    @classmethod
    async def make(cls, serving: Serving, body: ChatCompletionRequest, caller: Caller) -> "ChatJob":
        serving.check_model(body.model)
        calls = _calls_format(serving, body)
        grammar = chat_grammar(body, calls, serving.llm.tokenizer)
        if grammar is not None and not body.forces_call:
            calls = None  # The client's own grammar applies: a JSON answer may look like a call.
        params = replace(chat_params(body, serving.config), grammar=grammar)
        messages, options = await off_loop(weight(body.messages), lambda: _template_input(serving, body))
        prompt = await serving.chat_prompt(messages, **options)
        request = await serving.request(body, prompt, params, caller)
        serving.check_scores([request])
        return cls(serving, body, params, request, calls, f"chatcmpl-{caller.request_id}")

    @property
    def requests(self) -> tuple[Request]:
        return (self.request,)

    def splitter(self) -> Splitter:
        names = [tool.function.name for tool in self.body.tools or ()]
        calls: Splitter = PlainText() if self.calls is None else tool_splitter(self.calls, names)
        if self.body.parallel_tool_calls is False:
            calls = OneCall(calls)
        tokenizer = self.serving.llm.tokenizer
        # A grammar applies from the first token, so there is no reasoning before the answer.
        is_held = self.params.grammar is not None
        if is_held or not thinks(tokenizer.chat_template, self.serving.config.reasoning_format):
            return calls
        inside = starts_inside(tokenizer, self.request.prompt_token_ids)
        return Chain(ReasoningSplitter(inside=inside), calls)

    async def whole(self) -> ChatCompletion:
        self.finished = await self.serving.outputs([self.request])
        return ChatCompletion(
            id=self.answer_id,
            created=self.created,
            model=self.serving.model_name,
            choices=await off_loop(num_scores(self.finished), self._choices),
            usage=usage_of(self.finished),
        )

    def _choices(self) -> list[ChatChoice]:
        output = self.finished[0]
        return [self._choice(output, each) for each in output.outputs]

    async def chunks(self) -> AsyncGenerator[ChatChunk, None]:
        growing = [_Growing(index, self) for index in range(self.params.n)]
        async with aclosing(self.serving.events([self.request])) as events:
            async for _number, event in events:
                if isinstance(event, RequestOutput):
                    self.finished.append(event)
                    check_complete(event)
                else:
                    for part in growing[event.index].parts(event):
                        self.num_generated += len(part.token_ids)
                        choice = growing[event.index].take(part, self.serving)
                        if choice is not None:
                            usage = usage_of_chunk(self.body, self.requests, self.num_generated)
                            yield self._chunk([choice], usage)
        if self.body.includes_usage:
            yield self._chunk([], usage_of(self.finished))

    def _choice(self, output: RequestOutput, completion: CompletionOutput) -> ChatChoice:
        splitter = self.splitter()
        pieces = splitter.add(completion.text) + splitter.finish()
        calls = _tool_calls(pieces)
        texts = self.serving.texts
        scores = output.prompt_logprobs
        extra: dict[str, Any] = {}
        if scores is not None:
            extra["prompt_logprobs"] = prompt_logprobs(scores, texts)
        if self.body.return_origins:
            extra["origins"] = completion.origins
        if self.body.return_trees:
            extra["trees"] = shown_trees(completion.trees, texts)
        return ChatChoice(
            index=completion.index,
            message=_message(pieces, calls),
            logprobs=None if completion.logprobs is None else chat_logprobs(completion.logprobs, texts),
            finish_reason=_finish_reason(completion.finish_reason, has_calls=bool(calls)),
            stop_reason=completion.stop_reason,
            **extra,
        )

    def _chunk(self, choices: list[DeltaChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(
            id=self.answer_id,
            created=self.created,
            model=self.serving.model_name,
            choices=choices,
            usage=usage,
        )


class _Growing:
    """Builds the chunks of one choice of a stream."""

    def __init__(self, index: int, job: ChatJob) -> None:
        self._index, self._splitter, self._body = index, job.splitter(), job.body
        self._texts: TextByToken | None = None
        """Only if the client wants to know the tokens' origins."""
        if job.body.return_origins:
            self._texts = TextByToken(
                job.serving.llm.tokenizer,
                job.request.prompt_token_ids,
                skip_special_tokens=job.params.skip_special_tokens,
            )
        self._num_calls = 0
        self._has_begun = False
        self._scored: list[TokenLogprobs] = []
        """Log-probabilities of tokens whose text is still held back."""
        self._origins: list[Origin] = []
        self._trees: list[VerifiedTree] = []

    def parts(self, increment: Increment) -> Iterator[Increment]:
        """The increment, or one for each of its tokens if the client wants to know their origins."""
        if self._texts is None:
            yield increment
            return
        texts = self._texts.divide(increment.text, increment.token_ids)
        if len(texts) < 2:
            yield increment
            return
        for place, text in enumerate(texts):
            is_last = place == len(texts) - 1
            here = slice(place, place + 1)
            yield replace(
                increment,
                text=text,
                token_ids=increment.token_ids[here],
                logprobs=None if increment.logprobs is None else increment.logprobs[here],
                finish_reason=increment.finish_reason if is_last else None,
                stop_reason=increment.stop_reason if is_last else None,
                origins=increment.origins[here],
                trees=() if place else increment.trees,
            )

    def take(self, increment: Increment, serving: Serving) -> DeltaChoice | None:
        """The chunk to send after an increment; None while its text is held back."""
        pieces = self._splitter.add(increment.text)
        is_last = increment.finish_reason is not None
        if is_last:
            pieces += self._splitter.finish()
        self._scored += increment.logprobs or ()
        self._origins += increment.origins
        self._trees += increment.trees
        if not pieces and not is_last and self._has_begun:
            return None
        calls = _tool_calls(pieces, first=self._num_calls)
        self._num_calls += len(calls)
        fields: dict[str, Any] = {"delta": _delta(pieces, calls, is_first=not self._has_begun)}
        if increment.logprobs is not None:
            fields["logprobs"] = chat_logprobs(self._scored, serving.texts)
        if self._body.return_origins:
            fields["origins"] = tuple(self._origins)
        if self._body.return_trees:
            fields["trees"] = shown_trees(self._trees, serving.texts)
        if increment.finish_reason is not None:
            has_calls = self._num_calls > 0
            fields["finish_reason"] = _finish_reason(increment.finish_reason, has_calls=has_calls)
            fields["stop_reason"] = increment.stop_reason
        self._has_begun = True
        self._scored, self._origins, self._trees = [], [], []
        return DeltaChoice(index=self._index, **fields)


def shown_trees(trees: Sequence[VerifiedTree], texts: TokenTexts) -> list[ShownTree]:
    return [
        ShownTree(
            start=tree.start,
            tokens=[texts.text(token) for token in tree.tokens],
            parents=tree.parents,
            branch=tree.branch,
        )
        for tree in trees
    ]


def _template_input(serving: Serving, body: ChatCompletionRequest) -> tuple[list[Message], dict[str, Any]]:
    """Messages and keyword arguments for the chat template."""
    messages, options = conversation(body.messages), template_options(body)
    template = serving.llm.tokenizer.chat_template
    kind = tool_format(template, serving.config.tool_format)
    if kind is None or knows_tools(template):
        return messages, options
    return spelled_out(messages, options.pop("tools", ()), kind), options


def _calls_format(serving: Serving, body: ChatCompletionRequest) -> KnownFormat | None:
    if not body.tools or body.tool_choice == "none":
        return None
    found = tool_format(serving.llm.tokenizer.chat_template, serving.config.tool_format)
    if found is None:
        message = "this model's chat template has no tools: leave them out, or start with --tool-format"
        raise ApiError(400, message, param="tools", code="unsupported_value")
    return found


def _text(pieces: Sequence[Piece], kind: type[Content | Reasoning]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def _message(pieces: Sequence[Piece], calls: list[ToolCall]) -> AssistantMessage:
    content, reasoning = _text(pieces, Content), _text(pieces, Reasoning)
    message = AssistantMessage(content=content if content or not calls else None)
    return message.having(reasoning_content=reasoning or None, tool_calls=calls or None)


def _delta(pieces: Sequence[Piece], calls: list[ToolCall], *, is_first: bool) -> Delta:
    content, reasoning = _text(pieces, Content), _text(pieces, Reasoning)
    return Delta().having(
        role="assistant" if is_first else None,
        content=content if content or is_first else None,
        reasoning_content=reasoning or None,
        tool_calls=calls or None,
    )


def _tool_calls(pieces: Sequence[Piece], first: int | None = None) -> list[ToolCall]:
    """`first`: in a stream, the index of the first new call."""
    found = [piece for piece in pieces if isinstance(piece, Call)]
    calls = [
        ToolCall(
            id=f"call_{uuid.uuid4().hex[:24]}",
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for call in found
    ]
    if first is None:
        return calls
    return [call.having(index=first + number) for number, call in enumerate(calls)]


def _finish_reason(reason: str, *, has_calls: bool) -> str:
    return "tool_calls" if has_calls and reason == "stop" else reason
