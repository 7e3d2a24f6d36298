"""A running request and its sequences: turns tokens into text, and text into increments.

Knows one request. Does not know the scheduler, the model or other requests.
"""

import time
from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ssd.decoding.rows import VerifiedTree
from ssd.draft.client.speculator import Round
from ssd.engine.detokenizer import Detokenizer
from ssd.engine.outputs import (
    MOST_KEPT_TREES,
    CompletionOutput,
    Increment,
    Origin,
    RequestOutput,
    SpeculationStats,
    Timings,
)
from ssd.engine.sequence import Sequence
from ssd.engine.stopping import Stop, StopText, no_token_left, token_stop
from ssd.sampling import SampledToken, SamplingParams, Tally, TokenLogprobs
from ssd.sampling.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked for; never changes."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """The caller's, or drawn when the request is made, so that preemption does not change it."""
    end_ids: tuple[int, ...]
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    speculation: bool = True
    """False: no draft is used. The tokens are the same."""
    cache_key: str = ""
    """Only requests with the same key share prompts in the prefix cache."""
    group: str = ""
    """Requests that one caller sent together share a group; empty: a group of its own."""
    arrival: float = field(default_factory=time.perf_counter)


class StepResult(msgspec.Struct, frozen=True):
    """The tokens that one step decided for one sequence, up to the sequence's end."""

    tokens: Tokens[SampledToken]
    num_accepted: int
    num_drafted: int
    how: Round | None
    text: str | None
    """None: the tokens have not been detokenized yet."""
    tree: VerifiedTree | None = None
    """The verified speculation, if it had several paths."""

    def note_in(self, stats: SpeculationStats) -> None:
        stats.note(
            drafted=self.num_drafted,
            accepted=self.num_accepted,
            how=self.how,
            is_tree=self.tree is not None,
        )

    @property
    def origins(self) -> list[Origin]:
        accepted_from: Origin = "hit" if self.how is None or self.how.cause == "hit" else "backup"
        own: list[Origin] = ["target"] * (len(self.tokens) - self.num_accepted)
        return [accepted_from] * self.num_accepted + own


class Generation:
    """One sequence's tokens, text and end."""

    def __init__(
        self,
        request: Request,
        sequence: Sequence,
        seed: int,
        tokenizer: Any,
        constraint: Constraint | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self.sequence = sequence
        self.seed = seed
        self._detokenizer = Detokenizer(
            tokenizer, request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._stop_text = StopText(params.stop, include_stop=params.include_stop_str_in_output)
        self._reads_at_once = bool(params.stop)
        """There are stop strings, so the end may depend on the text: detokenize at once."""
        self.forbidden_ends = (*request.end_ids, *params.stop_token_ids)
        """Tokens that may not be sampled before min_tokens."""
        self._end_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else request.end_ids)
        self._results: list[StepResult] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._num_taken = 0
        self.speculation = SpeculationStats()
        self._origins: list[Origin] = []
        self._trees: deque[VerifiedTree] = deque(maxlen=MOST_KEPT_TREES)
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.stop: Stop | None = None
        self.constraint = constraint
        self.tally = Tally(request.prompt_token_ids) if params.penalised else None

    def settle(
        self,
        tokens: Tokens[SampledToken],
        max_model_len: int,
        num_drafted: int = 0,
        how: Round | None = None,
        tree: VerifiedTree | None = None,
    ) -> tuple[int, ...]:
        """Takes in new tokens up to the one that ends the sequence, and returns those.

        `increment` makes their text later, while the next step computes.
        """
        taken, text = self._until_end(tokens, self.sequence.num_remaining(max_model_len))
        num_accepted = min(len(taken), len(tokens) - 1)
        self._results.append(StepResult(taken, num_accepted, num_drafted, how, text, tree))
        ids = tuple([token.token for token in taken])
        if self.constraint is not None:
            self.constraint.advance(ids)
        return ids

    def take_results(self) -> list[StepResult]:
        """Results settled since the last call."""
        results, self._results = self._results, []
        return results

    def increment(self, results: Tokens[StepResult]) -> Increment:
        """The increment that callers get for these results."""
        text = "".join(self._text_of(result, is_last=result is results[-1]) for result in results)
        origins: list[Origin] = []
        for result in results:
            result.note_in(self.speculation)
            origins += result.origins
        trees = tuple([result.tree for result in results if result.tree is not None])
        self._trees.extend(trees)
        tokens = [token for result in results for token in result.tokens]
        return self._record(tokens, text, tuple(origins), trees)

    def abort(self) -> Increment:
        self.stop = Stop("abort")
        return self._record([], self._stop_text.pass_by(""))

    def score_prompt(self, start: int, logprobs: Tokens[TokenLogprobs]) -> None:
        """Takes in scores of the tokens after `start`; a recomputed chunk replaces its earlier scores."""
        self.prompt_logprobs[start:] = logprobs

    def output(self) -> CompletionOutput:
        stop = self.stop or Stop("abort")
        return CompletionOutput(
            index=self.sequence.index,
            text="".join(self._texts),
            token_ids=tuple(self.sequence.generated),
            finish_reason=stop.finish_reason,
            stop_reason=stop.stop_reason,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            speculation=replace(self.speculation),
            origins=tuple(self._origins),
            trees=tuple(self._trees),
        )

    def _until_end(self, tokens: Tokens[SampledToken], room: int) -> tuple[Tokens[SampledToken], str | None]:
        """The tokens up to the sequence's end, and their text if there are stop strings."""
        may_end = len(tokens) >= room or not self._end_ids.isdisjoint([token.token for token in tokens])
        may_end = may_end or (self.constraint is not None and any(token.is_void for token in tokens))
        if not self._reads_at_once and not may_end:
            self._num_taken += len(tokens)
            return tokens, None
        taken: list[SampledToken] = []
        text = ""
        for token in tokens:
            if token.is_void:
                self.stop = no_token_left(self.constraint.problem if self.constraint else "")
                text += self._stop_text.pass_by("")
                break
            taken.append(token)
            self._num_taken += 1
            self.stop = self._token_stop(token.token, num_remaining=room - len(taken))
            if self._reads_at_once:
                text += self._read(token.token)
            if self.stop is not None:
                break
        return taken, text if self._reads_at_once else None

    def _token_stop(self, token: int, *, num_remaining: int) -> Stop | None:
        params, end_ids = self.request.params, self.request.end_ids
        if self.constraint is not None and token in end_ids and not params.ignore_eos:
            return Stop("stop")  # Even before min_tokens: a grammar allows it only after a complete text.
        return token_stop(token, params, end_ids, num_generated=self._num_taken, num_remaining=num_remaining)

    def _text_of(self, result: StepResult, *, is_last: bool) -> str:
        if result.text is not None:
            return result.text
        if not result.tokens:
            return self._stop_text.pass_by("")
        ends_here = is_last and self.stop is not None
        *before, last = result.tokens
        text = "".join([self._detokenizer.add(token.token) for token in before])
        return text + (self._read(last.token) if ends_here else self._detokenizer.add(last.token))

    def _read(self, token: int) -> str:
        """The text that a token releases; sets `stop` if it completes a stop string."""
        params, stop = self.request.params, self.stop
        ends_by_token = stop is not None and stop.finish_reason == "stop"
        is_silent = ends_by_token and not params.include_stop_str_in_output
        new_text = "" if is_silent else self._detokenizer.add(token)
        if stop is not None:
            new_text += self._detokenizer.flush()
        if self._num_taken < params.min_tokens:
            released, stop_string = self._stop_text.pass_by(new_text), None
        else:
            released, stop_string = self._stop_text.add(new_text)
        if stop_string is not None:
            stop = Stop("stop", stop_string)
        elif stop is not None:
            released += self._stop_text.pass_by("")
        self.stop = stop
        return released

    def _record(
        self,
        taken: list[SampledToken],
        text: str,
        origins: tuple[Origin, ...] = (),
        trees: tuple[VerifiedTree, ...] = (),
    ) -> Increment:
        logprobs = tuple(token.logprobs for token in taken if token.logprobs is not None)
        self._texts.append(text)
        self._origins.extend(origins)
        if self._logprobs is not None:
            self._logprobs.extend(logprobs)
        return Increment(
            request_id=self.request.request_id,
            index=self.sequence.index,
            text=text,
            token_ids=tuple(token.token for token in taken),
            logprobs=logprobs if self._logprobs is not None else None,
            finish_reason=self.stop.finish_reason if self.stop else None,
            stop_reason=self.stop.stop_reason if self.stop else None,
            origins=origins,
            trees=trees,
        )


class RunningRequest:
    """A request and its n generations, until the last one ends."""

    def __init__(self, request: Request, generations: Tokens[Generation]) -> None:
        self.request = request
        self.generations = tuple(generations)
        self._first_scheduled: float | None = None
        self._first_token: float | None = None

    @property
    def is_finished(self) -> bool:
        return all(generation.stop is not None for generation in self.generations)

    def note_scheduled(self, now: float) -> None:
        if self._first_scheduled is None:
            self._first_scheduled = now

    def note_token(self, now: float) -> None:
        if self._first_token is None:
            self._first_token = now

    def output(self, now: float) -> RequestOutput:
        arrival = self.request.arrival
        outputs = tuple(generation.output() for generation in self.generations)
        scored = self.generations[0].prompt_logprobs
        wants_scores = self.request.params.prompt_logprobs is not None
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=(None, *scored) if wants_scores else None,
            outputs=outputs,
            seed=self.request.seed,
            num_cached_tokens=self.generations[0].sequence.num_cached,
            num_preemptions=sum(each.sequence.num_preemptions for each in self.generations),
            timings=Timings(
                queued=(self._first_scheduled or now) - arrival,
                first_token=(self._first_token or now) - arrival,
                total=now - arrival,
                num_output_tokens=max(len(output.token_ids) for output in outputs),
            ),
        )
