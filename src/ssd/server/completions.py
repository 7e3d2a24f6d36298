"""POST /v1/completions: continues prompts, as a whole or as a stream."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from msgspec import UnsetType

from ssd.engine.outputs import CompletionOutput, Increment, RequestOutput
from ssd.engine.request import Request
from ssd.sampling import SamplingParams
from ssd.server.answers import Completion, TextChoice, TextLogprobs, Usage, usage_of, usage_of_chunk
from ssd.server.grammars import structured_outputs
from ssd.server.logprobs import num_scores, prompt_logprobs, text_logprobs
from ssd.server.prompts import completion_params, completion_prompts
from ssd.server.schemas import CompletionRequest
from ssd.server.serving import Caller, Serving, check_complete
from ssd.worker.async_llm import off_loop


@dataclass(slots=True)
class CompletionJob:
    """One completion request: an engine request for each prompt, and how their outputs become a response."""

    serving: Serving
    body: CompletionRequest
    params: SamplingParams
    requests: Sequence[Request]
    answer_id: str
    created: int = field(default_factory=lambda: int(time.time()))
    finished: list[RequestOutput] = field(default_factory=list)
    num_generated: int = 0
    """Number of tokens streamed so far."""
    _offsets: dict[int, int] = field(default_factory=dict)
    """By choice: character offset of its next token."""

    @classmethod
    async def make(cls, serving: Serving, body: CompletionRequest, caller: Caller) -> "CompletionJob":
        serving.check_model(body.model)
        params = replace(completion_params(body, serving.config), grammar=structured_outputs(body))
        prompts = completion_prompts(body, serving.config, serving.check_length)
        serving.check_num_texts(len(prompts), params.n)
        group = uuid.uuid4().hex
        requests = [await serving.request(body, prompt, params, caller, group=group) for prompt in prompts]
        serving.check_scores(requests)
        return cls(serving, body, params, requests, f"cmpl-{caller.request_id}")

    async def whole(self) -> Completion:
        self.finished = [self._as_requested(each) for each in await self.serving.outputs(self.requests)]
        choices = await off_loop(num_scores(self.finished), self._all_choices)
        return self._answer(choices, usage_of(self.finished))

    async def chunks(self) -> AsyncGenerator[Completion, None]:
        if self.body.echo:
            for number, request in enumerate(self.requests):
                for index in range(self.params.n):
                    place = number * self.params.n + index
                    yield self._chunk(TextChoice(index=place, text=self._prompt_text(request)))
        async with aclosing(self.serving.events(self.requests)) as events:
            async for number, event in events:
                if isinstance(event, RequestOutput):
                    self.finished.append(self._as_requested(event))
                    check_complete(event)
                elif event.text or event.token_ids or event.finish_reason:
                    increment = _unwritten(event) if self.body.only_scores else event
                    self.num_generated += len(increment.token_ids)
                    yield self._chunk(self._choice(number, increment))
        if self.body.includes_usage:
            yield self._answer([], usage_of(self.finished))

    def _as_requested(self, output: RequestOutput) -> RequestOutput:
        if not self.body.only_scores:
            return output
        return replace(output, outputs=tuple(map(_unwritten, output.outputs)))

    def _all_choices(self) -> list[TextChoice]:
        return [choice for number in range(len(self.requests)) for choice in self._choices(number)]

    def _choices(self, number: int) -> list[TextChoice]:
        output, request = self.finished[number], self.requests[number]
        echoed = self._prompt_text(request) if self.body.echo else ""
        scores = output.prompt_logprobs if self.body.prompt_logprobs is not None else None
        extra = {} if scores is None else {"prompt_logprobs": prompt_logprobs(scores, self.serving.texts)}
        return [
            TextChoice(
                index=number * self.params.n + each.index,
                text=echoed + each.text,
                logprobs=self._whole_logprobs(output, each.index),
                finish_reason=each.finish_reason,
                stop_reason=each.stop_reason,
                **extra,
            )
            for each in output.outputs
        ]

    def _whole_logprobs(self, output: RequestOutput, index: int) -> TextLogprobs | None:
        completion = output.outputs[index]
        if completion.logprobs is None:
            return None
        token_ids, entries = completion.token_ids, list(completion.logprobs)
        if self.body.echo:
            token_ids = (*output.prompt_token_ids, *token_ids)
            entries = [*(output.prompt_logprobs or ()), *entries]  # type: ignore[list-item]
        return text_logprobs(entries, token_ids, self.serving.texts, num_top=self.params.logprobs or 0)

    def _choice(self, number: int, increment: Increment) -> TextChoice:
        place = number * self.params.n + increment.index
        return TextChoice(
            index=place,
            text=increment.text,
            logprobs=self._new_logprobs(place, increment),
            finish_reason=increment.finish_reason,
            stop_reason=increment.stop_reason,
        )

    def _new_logprobs(self, place: int, increment: Increment) -> TextLogprobs | None:
        if increment.logprobs is None:
            return None
        found = text_logprobs(
            increment.logprobs,
            increment.token_ids,
            self.serving.texts,
            num_top=self.params.logprobs or 0,
            offset=self._offsets.get(place, 0),
        )
        self._offsets[place] = self._offsets.get(place, 0) + sum(map(len, found.tokens))
        return found

    def _prompt_text(self, request: Request) -> str:
        if request.prompt is not None:
            return request.prompt
        text: str = self.serving.llm.tokenizer.decode(list(request.prompt_token_ids))
        return text

    def _chunk(self, choice: TextChoice) -> Completion:
        return self._answer([choice], usage_of_chunk(self.body, self.requests, self.num_generated))

    def _answer(self, choices: list[TextChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(
            id=self.answer_id,
            created=self.created,
            model=self.serving.model_name,
            choices=choices,
            usage=usage,
        )


Written = TypeVar("Written", Increment, CompletionOutput)


def _unwritten(text: Written) -> Written:
    """Remove the generated token: with max_tokens=0 the engine still generates one."""
    scores = None if text.logprobs is None else ()
    nothing: Any = {"text": "", "token_ids": (), "logprobs": scores, "origins": (), "trees": ()}
    return replace(text, **nothing, finish_reason=text.finish_reason and "length", stop_reason=None)
