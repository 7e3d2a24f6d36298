"""What all routes share: the engine, checks of requests, and running several requests at a time.

Knows the engine and the parts of the server. Does not know the formats of responses.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Request as HttpRequest

from ssd.config.server import ServerConfig
from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.prompts import Message, Prompt, PromptTooLongError
from ssd.engine.request import Request
from ssd.models.hub import model_title
from ssd.sampling import SamplingParams
from ssd.sampling.constraint import GrammarBusyError, GrammarError
from ssd.server.errors import ApiError
from ssd.server.gate import Gate
from ssd.server.logprobs import MOST_PROMPT_SCORES, TokenTexts, num_prompt_scores
from ssd.server.metrics import Metrics
from ssd.server.schemas import ChatCompletionRequest, CompletionRequest
from ssd.worker.async_llm import AsyncLLM
from ssd.worker.templates import TemplateError, TemplatesBusyError

Numbered = tuple[int, Increment | RequestOutput]
"""Index of the request, and an event of it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The id of an HTTP request, and its tenant. Only requests of one tenant share the prefix cache."""

    request_id: str
    tenant: str = ""
    """A digest of the API key; empty if the server has no keys."""

    @classmethod
    def of(cls, request: HttpRequest) -> "Caller":
        return cls(request.state.request_id, getattr(request.state, "tenant", ""))

    def cache_key(self, salt: str | None) -> str:
        """Key of the prefix cache. Tenants never share entries: `cached_tokens` and the time to first token
        would reveal other tenants' prompts."""
        return f"{self.tenant}\n{salt or ''}"


@dataclass(slots=True)
class Serving:
    llm: AsyncLLM
    config: ServerConfig
    metrics: Metrics
    gate: Gate
    started: int = field(default_factory=lambda: int(time.time()))
    _texts: TokenTexts | None = None

    @property
    def model_name(self) -> str:
        return self.config.served_model_name or model_title(self.llm.config.model)

    @property
    def texts(self) -> TokenTexts:
        if self._texts is None:
            self._texts = TokenTexts(self.llm.tokenizer)
        return self._texts

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            message = f"no model {name!r} here: this server has {self.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_length(self, num_prompt: int) -> None:
        """Makes the engine's own check here, while a refusal can still be a 400 response."""
        most = self.llm.max_model_len
        if num_prompt >= most:
            message = f"the prompt has {num_prompt} tokens: with its output it may have at most {most}"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")

    def check_num_texts(self, num_prompts: int, n: int) -> None:
        """Refuse a request for more texts (prompts times `n`) than the server takes at once."""
        most = max(self.gate.most_at_once, self.config.max_prompts, self.config.max_n)
        if num_prompts * n > most:
            message = f"{num_prompts} prompts with {n} texts each: this server takes {most} texts at once"
            raise ApiError(400, message, param="n", code="too_many_texts")

    def check_scores(self, requests: Sequence[Request]) -> None:
        num_scores = num_prompt_scores(requests)
        if num_scores > MOST_PROMPT_SCORES:
            message = (
                f"the answer would have {num_scores} prompt log-probabilities, and this server returns at "
                f"most {MOST_PROMPT_SCORES} at once: ask for fewer alternatives, texts or prompts"
            )
            raise ApiError(400, message, param="prompt_logprobs", code="too_many_scores")

    async def request(
        self,
        body: ChatCompletionRequest | CompletionRequest,
        prompt: Prompt,
        params: SamplingParams,
        caller: Caller,
        *,
        group: str = "",
    ) -> Request:
        """Make a fully checked engine request, so that nothing is refused after the answer has started."""
        try:
            # The engine makes its own ids: clients may use an id twice.
            request = await self.llm.request(
                prompt,
                params,
                speculation=body.speculation is not False,
                cache_key=caller.cache_key(body.cache_salt),
                group=group,
            )
        except GrammarBusyError as error:
            raise ApiError(503, str(error), code="grammars_busy", headers={"Retry-After": "1"}) from error
        except GrammarError as error:
            raise ApiError(400, str(error), param=_form_field(body)) from error
        except PromptTooLongError as error:
            raise too_long(error) from error
        self.check_length(len(request.prompt_token_ids))
        return request

    async def chat_prompt(self, messages: Sequence[Message], **template_options: Any) -> list[int]:
        """Token ids of a conversation. An error of the chat template becomes a 400 response."""
        try:
            return await self.llm.chat_prompt(messages, **template_options)
        except TemplatesBusyError as error:
            raise ApiError(429, str(error), code="queue_full", headers={"Retry-After": "1"}) from error
        except TemplateError as error:
            raise ApiError(400, f"the chat template refuses this: {error}", param="messages") from error
        except PromptTooLongError as error:
            raise too_long(error) from error

    async def encoded(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return await self.llm.encoded(text, add_special_tokens=add_special_tokens)
        except PromptTooLongError as error:
            raise too_long(error) from error

    async def run(self, request: Request) -> AsyncGenerator[Increment | RequestOutput, None]:
        """Yield increments, then the output, of one request. Closing it early aborts the request."""
        meter = self.metrics.meter(len(request.prompt_token_ids))
        try:
            # The gate is left when the engine has finished, even if the client reads slowly.
            leave = partial(self.gate.leave, request)
            async with aclosing(self.llm.run(request, on_end=leave)) as events:
                async for event in events:
                    meter.note(event)
                    yield event
        finally:
            meter.end()

    async def outputs(self, requests: Sequence[Request]) -> list[RequestOutput]:
        found: dict[int, RequestOutput] = {}
        async with aclosing(self.events(requests)) as events:
            async for number, event in events:
                if isinstance(event, RequestOutput):
                    check_complete(event)
                    found[number] = event
        return [found[number] for number in range(len(requests))]

    async def events(self, requests: Sequence[Request]) -> AsyncGenerator[Numbered, None]:
        """Events of all requests as they arrive.

        The queue holds one event, so memory stays bounded: increments that a slow client has not read wait
        in the inboxes of `EngineProcess`, where they are joined.
        """
        queue: asyncio.Queue[Numbered | BaseException] = asyncio.Queue(maxsize=1)

        async def pump(number: int, request: Request) -> None:
            try:
                async with aclosing(self.run(request)) as events:
                    async for event in events:
                        await queue.put((number, event))
            except Exception as error:
                await queue.put(error)

        pumps = [asyncio.create_task(pump(number, each)) for number, each in enumerate(requests)]
        num_open = len(requests)
        try:
            while num_open:
                event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                num_open -= isinstance(event[1], RequestOutput)
                yield event
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


def too_long(error: PromptTooLongError) -> ApiError:
    return ApiError(400, str(error), param="prompt", code="context_length_exceeded")


def _form_field(body: ChatCompletionRequest | CompletionRequest) -> str:
    """The field of the request that asked for a grammar. At most one field may."""
    if body.structured_outputs is not None:
        return "structured_outputs"
    wanted = body.response_format if isinstance(body, ChatCompletionRequest) else None
    return "tool_choice" if wanted is None or wanted.type == "text" else "response_format"


def check_complete(output: RequestOutput) -> None:
    """Raise ApiError for an output that failed its grammar or was aborted because the server is shutting
    down."""
    for each in output.outputs:
        if each.finish_reason == "error":
            raise ApiError(
                400, f"the answer does not follow its grammar: {each.stop_reason}", code="no_answer"
            )
    if any(each.finish_reason == "abort" for each in output.outputs):
        raise ApiError(503, "the server ended before the answer was complete", code="draining")
