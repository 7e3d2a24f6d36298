"""A request and its sequences as they run: tokens turn into text, text into increments.

Knows one request. Does not know the scheduler, the model or other requests.
"""

import time
from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from typing import Any

from ssd.decoding.rows import VerifiedTree
from ssd.draft.client.speculator import Round
from ssd.engine.burst import Burst
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
    """What a caller asked for, once and for all."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """Drawn at admission where the caller gave none, so that it survives preemption."""
    end_ids: tuple[int, ...]
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    speculation: bool = True
    """False: nobody drafts for it. The tokens are the same."""
    cache_key: str = ""
    """Only requests with the same one share prompts in the prefix cache."""
    group: str = ""
    """Those of one group were asked for at once; empty: it alone."""
    arrival: float = field(default_factory=time.perf_counter)


class Generation:
    """One sequence's text and end."""

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
        """Whether a sequence has ended may depend on its text: then the text cannot wait."""
        self.forbidden_ends = (*request.end_ids, *params.stop_token_ids)
        """Until min_tokens."""
        self._end_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else request.end_ids)
        self._untold: list[Burst] = []
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
        """Takes in new tokens up to the one that ends the sequence; later ones do not count.

        Their text can be made later (`tell`), while the next step computes.
        """
        taken, text = self._until_end(tokens, self.sequence.num_remaining(max_model_len))
        num_accepted = min(len(taken), len(tokens) - 1)
        self._untold.append(Burst(taken, num_accepted, num_drafted, how, text, tree))
        ids = tuple([token.token for token in taken])
        if self.constraint is not None:
            self.constraint.advance(ids)
        return ids

    def take_untold(self) -> list[Burst]:
        """What was settled since the last time."""
        untold, self._untold = self._untold, []
        return untold

    def tell(self, bursts: Tokens[Burst]) -> Increment:
        """What was settled, as callers see it."""
        text = "".join(self._text_of(burst, is_last=burst is bursts[-1]) for burst in bursts)
        origins: list[Origin] = []
        for burst in bursts:
            burst.note_in(self.speculation)
            origins += burst.origins
        trees = tuple([burst.tree for burst in bursts if burst.tree is not None])
        self._trees.extend(trees)
        tokens = [token for burst in bursts for token in burst.tokens]
        return self._record(tokens, text, tuple(origins), trees)

    def abort(self) -> Increment:
        self.stop = Stop("abort")
        return self._record([], self._stop_text.pass_by(""))

    def score_prompt(self, start: int, logprobs: Tokens[TokenLogprobs]) -> None:
        """Scores of the tokens after position `start`; a recomputed chunk replaces its earlier scores."""
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
        """The tokens that count; and their text, where it had to be looked at."""
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
            return Stop("stop")  # Also before min_tokens: there only a complete text comes to its end.
        return token_stop(token, params, end_ids, num_generated=self._num_taken, num_remaining=num_remaining)

    def _text_of(self, burst: Burst, *, is_last: bool) -> str:
        if burst.text is not None:
            return burst.text
        if not burst.tokens:
            return self._stop_text.pass_by("")
        ends_here = is_last and self.stop is not None
        *before, last = burst.tokens
        text = "".join([self._detokenizer.add(token.token) for token in before])
        return text + (self._read(last.token) if ends_here else self._detokenizer.add(last.token))

    def _read(self, token: int) -> str:
        """The text a token brings, and the end that the text brings about."""
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
    """A request with its n generations, until the last one ends."""

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
