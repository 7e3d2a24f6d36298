"""The engine's step: propose, schedule, launch, finish, settle, deliver. Requests in, outputs out.

Knows how scheduler, decoder and requests work together. Does not know threads, prompts as text or
HTTP. A step computes first and commits afterwards, so a failed forward changes no token.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ssd.decoding.decoder import Decoder
from ssd.decoding.rows import Decided, DecodeRow, DraftContext, PromptScoring
from ssd.decoding.timeline import Timeline
from ssd.decoding.verification import worth_verifying
from ssd.draft.client.speculator import Round
from ssd.engine.outputs import EngineStats, Increment, RequestOutput, SpeculationStats
from ssd.engine.prefill_budget import PrefillBudget
from ssd.engine.request import Generation, Request, RunningRequest, StepResult
from ssd.engine.scheduler import Schedule, ScheduledRow, Scheduler, SchedulerLimits
from ssd.engine.sequence import Sequence
from ssd.errors import InvalidRequestError
from ssd.kvcache.block_manager import BlockManager
from ssd.sampling import History, SamplingParams, SamplingRow, mix_seed
from ssd.sampling.constraint import Constraint, Grammar, GrammarState


@dataclass(frozen=True, slots=True)
class StepOutput:
    increments: tuple[Increment, ...]
    finished: tuple[RequestOutput, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step whose forward was launched."""

    started: float
    schedule: Schedule
    rows: list[DecodeRow]


class EngineCore:
    def __init__(
        self,
        decoder: Decoder,
        block_manager: BlockManager,
        limits: SchedulerLimits,
        tokenizer: Any,
        clock: Callable[[], float] = time.monotonic,
        grammars: Callable[[Grammar, int], list[Constraint]] | None = None,
    ) -> None:
        self._decoder = decoder
        self._blocks = block_manager
        self._limits = limits
        self._scheduler = Scheduler(limits, block_manager)
        self._tokenizer = tokenizer
        self._clock = clock
        self._grammars = grammars
        self._requests: dict[str, RunningRequest] = {}
        self._generations: dict[int, Generation] = {}
        self._in_flight: _Step | None = None
        """The step whose forward was launched and not finished yet."""
        self._left_at = 0.0
        """When `step` last returned."""
        self._without_text: list[Generation] = []
        """Generations whose latest tokens are settled, but not detokenized."""
        self._outputs: list[StepOutput] = []
        """Outputs that are ready, but not returned yet; kept if a step fails."""
        self._speculation = SpeculationStats()
        self._lengths: Counter[int] = Counter()
        """Number of rounds by how many drafted tokens they verified."""
        self._num_steps, self._step_seconds, self._verify_seconds, self._wait_seconds = 0, 0.0, 0.0, 0.0
        self._num_uncaptured_before = decoder.num_uncaptured
        self.timeline: Timeline | None = None
        """If set, records every step."""
        self._prefill_budget: PrefillBudget | None = None

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight or self._without_text or self._outputs)

    @property
    def decoder(self) -> Decoder:
        return self._decoder

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks held by sequences, 0 to 1."""
        return self._blocks.usage

    def share_fairly(self, prefill_budget: PrefillBudget | None = None) -> None:
        """Keeps one caller's requests from delaying other callers. For servers.

        A group is what one caller sent together. Its sequences after the first may take at most half of
        max_num_seqs. The prefill budget limits them further, and the prompt tokens, in each step.
        """
        limits = self._limits
        self._scheduler.max_num_further = max(1, limits.max_num_seqs // 2)
        self._prefill_budget = prefill_budget or PrefillBudget(
            limits.max_num_batched_tokens, self._scheduler.max_num_further
        )

    def add(self, request: Request) -> None:
        """Queues a request, or raises InvalidRequestError if it can never run."""
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is already running: choose another")
        generations = self._generations_of(request)
        # None of the n needs more than the first: if the scheduler accepts that one, it accepts all.
        for generation in generations:
            self._scheduler.add(generation.sequence)
        self._requests[request.request_id] = RunningRequest(request, generations)
        self._generations.update({each.sequence.seq_id: each for each in generations})

    def abort(self, request_id: str) -> StepOutput:
        """Ends a request now. Ignores an unknown id: the request may have just ended."""
        running = self._requests.get(request_id)
        if running is None:
            return StepOutput((), ())
        self._without_text = [each for each in self._without_text if each not in running.generations]
        for generation in running.generations:
            # Even one that has stopped: after a failed step the scheduler may still hold it.
            self._end(generation.sequence)
        increments = []
        for generation in running.generations:
            results = generation.take_results()
            if results:
                increments.append(self._increment(generation, results))
            if generation.stop is None:
                increments.append(generation.abort())
        return StepOutput(tuple(increments), self._collect_finished([running]))

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            replace(self._speculation),
            self._num_steps,
            self._step_seconds,
            self._verify_seconds,
            self._wait_seconds,
            self._decoder.proposer.draft_stats,
            dict(self._lengths),
            self._decoder.num_uncaptured - self._num_uncaptured_before,
        )

    def step(self) -> StepOutput:
        """Finishes the step in flight, if there is one, and launches the next.

        A forward that blocks the host is finished at once. Otherwise this returns while the forward
        computes, and the next call returns its tokens: detokenizing overlaps with the forward.
        """
        self._finish_step()
        if self._scheduler.has_work:
            self._in_flight = self._launch_step()
            if not self._decoder.is_async:
                self._finish_step()
        self._make_outputs()
        self._left_at = self._clock()
        return self._take_outputs()

    def _launch_step(self) -> _Step:
        started = self._clock()
        if self._prefill_budget is not None:
            self._scheduler.max_moving_further = self._prefill_budget.num_further
        self._draft()
        schedule = self._scheduler.schedule(self._prompt_budget)
        for sequence in schedule.preempted:
            self._decoder.proposer.forget(sequence.seq_id)
        for row in schedule.rows:
            if not row.generated:
                self._begin(row.sequence)
        rows = [self._decode_row(row) for row in schedule.rows]
        self._decoder.launch(rows)
        return _Step(started, schedule, rows)

    def _finish_step(self) -> None:
        """Collects and settles the step in flight, if there is one. If that fails, the step is dropped."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return
        decided = self._decoder.collect(self._clock() - self._left_at)
        rounds = self._decoder.proposer.settle(step.rows, decided, self._decoder.times)
        now = self._clock()
        for row, result, how in zip(step.schedule.rows, decided, rounds, strict=True):
            self._settle(row, result, how, now)
        self._note_step(step.started, step.schedule)

    def _begin(self, sequence: Sequence) -> None:
        """Called before a chunk of the sequence's prompt is computed."""
        self._requests[sequence.request_id].note_scheduled(self._clock())
        if self._is_speculated(sequence):
            self._decoder.proposer.begin(self._context(sequence.seq_id))

    def flush(self) -> StepOutput:
        """Finishes the step in flight and returns all outputs; launches nothing."""
        self._finish_step()
        self._make_outputs()
        return self._take_outputs()

    def _take_outputs(self) -> StepOutput:
        outputs, self._outputs = self._outputs, []
        return StepOutput(
            tuple(increment for each in outputs for increment in each.increments),
            tuple(output for each in outputs for output in each.finished),
        )

    def _make_outputs(self) -> None:
        """Detokenizes settled tokens, and makes outputs of requests that have ended."""
        if not self._without_text:
            return
        waiting, self._without_text = self._without_text, []
        # Take all results first, so that tokens on which detokenizing fails are not tried again.
        results = [generation.take_results() for generation in waiting]
        increments = [self._increment(*each) for each in zip(waiting, results, strict=True)]
        touched = {each.request.request_id: self._requests[each.request.request_id] for each in waiting}
        self._outputs.append(StepOutput(tuple(increments), self._collect_finished(list(touched.values()))))

    @property
    def _prompt_budget(self) -> int | None:
        if self._prefill_budget is None or not self._limits.enable_chunked_prefill:
            return None
        return self._prefill_budget.num_prompt_tokens

    def _note_step(self, started: float, schedule: Schedule) -> None:
        ended, times = self._clock(), self._decoder.times
        if self._prefill_budget is not None:
            self._prefill_budget.note(
                schedule.num_prompt_tokens, schedule.num_further, ended - started - times.aside
            )
        self._num_steps += 1
        self._step_seconds += ended - started - times.aside
        self._verify_seconds += times.verify
        self._wait_seconds += times.wait
        if self.timeline is not None:
            self.timeline.add_step(started, ended, times, self._decoder.proposer.draft_steps())

    def _draft(self) -> None:
        """Asks the proposer for speculations and offers them to the scheduler, which may cut them."""
        if not self._decoder.proposer.is_drafting:
            return
        generations = self._generations
        self._scheduler.forget_offers()
        drafted = [each for each in self._scheduler.decoding if generations[each.seq_id].request.speculation]
        seq_ids = [each.seq_id for each in drafted]
        speculations = self._decoder.proposer.propose(seq_ids, self._context, self._grammar_states(seq_ids))
        num_trees = self._decoder.num_trees
        for sequence, speculation in zip(drafted, speculations, strict=True):
            constraint = generations[sequence.seq_id].constraint
            tokens, parents = worth_verifying(speculation, constraint, may_branch=num_trees > 0)
            num_trees -= parents is not None
            sequence.offer(tokens, parents)

    def _grammar_states(self, seq_ids: list[int]) -> dict[int, GrammarState]:
        """Grammar states of the sequences that have a grammar, except where no token can follow."""
        constrained = [(each, self._generations[each].constraint) for each in seq_ids]
        found = [(each, constraint.state()) for each, constraint in constrained if constraint is not None]
        return {each: state for each, state in found if state is not None}

    def _is_speculated(self, sequence: Sequence) -> bool:
        return self._decoder.proposer.is_drafting and self._generations[sequence.seq_id].request.speculation

    def _context(self, seq_id: int) -> DraftContext:
        generation = self._generations[seq_id]
        sequence = generation.sequence
        max_len = sequence.num_tokens + sequence.num_remaining(self._limits.max_model_len)
        return DraftContext(seq_id, self._sampling(generation), max_len)

    def _end(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        self._decoder.proposer.forget(sequence.seq_id)

    def use(self, decoder: Decoder) -> None:
        """Replaces the decoder of the same target while no request runs; does not close the old one."""
        self._finish_step()  # It may be left over from requests that were aborted.
        if self.has_work:
            raise ValueError("the decoder cannot change while requests run: let them end, or abort them")
        self._decoder = decoder

    def close(self) -> None:
        self._decoder.proposer.close()

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def _generations_of(self, request: Request) -> list[Generation]:
        params = request.params
        room = self._limits.max_model_len - len(request.prompt_token_ids)
        max_tokens = room if params.max_tokens is None else params.max_tokens
        parent_id: int | None = None
        generations, constraints = [], self._constraints(params)
        for index in range(params.n):
            sequence = Sequence(
                request.request_id,
                request.prompt_token_ids,
                max_tokens=max_tokens,
                index=index,
                parent_id=parent_id,
                group=request.group,
                wants_prompt_logits=params.prompt_logprobs is not None and index == 0,
                cache_key=request.cache_key,
            )
            parent_id = sequence.seq_id if parent_id is None else parent_id
            seed = mix_seed(request.seed, index)
            generations.append(Generation(request, sequence, seed, self._tokenizer, constraints[index]))
        return generations

    def _constraints(self, params: SamplingParams) -> list[Constraint] | list[None]:
        if params.grammar is None:
            return [None] * params.n
        if self._grammars is None:
            raise InvalidRequestError("this engine was built without grammars: leave `grammar` out")
        return self._grammars(params.grammar, params.n)

    def _decode_row(self, row: ScheduledRow) -> DecodeRow:
        seq_id = row.sequence.seq_id
        generation = self._generations[seq_id]
        num_drafted = row.num_drafted
        return DecodeRow(
            row.tokens,
            row.start,
            self._blocks.block_table(seq_id),
            row.generated,
            self._sampling(generation) if row.samples else None,
            num_drafted,
            None if row.generated else self._scoring(row, generation),
            seq_id,
            row.parents,
        )

    def _sampling(self, generation: Generation) -> SamplingRow:
        request, sequence = generation.request, generation.sequence
        tokens = sequence.tokens
        return SamplingRow(
            request.params,
            generation.seed,
            len(tokens),
            request.prompt_token_ids,
            History(tokens, sequence.num_prompt),
            generation.forbidden_ends,
            request.bad_word_ids,
            generation.constraint,
            tally=generation.tally,
        )

    def _scoring(self, row: ScheduledRow, generation: Generation) -> PromptScoring | None:
        num_top = generation.request.params.prompt_logprobs
        if num_top is None or not row.sequence.wants_prompt_logits:
            return None
        following = generation.request.prompt_token_ids[row.start + 1 : row.start + 1 + len(row.tokens)]
        return PromptScoring(following, num_top)

    def _settle(self, row: ScheduledRow, decided: Decided, how: Round | None, now: float) -> None:
        sequence = row.sequence
        generation = self._generations.get(sequence.seq_id)
        if generation is None:
            return  # The request was aborted while the step was in flight.
        if decided.prompt_logprobs:
            generation.score_prompt(row.start, decided.prompt_logprobs)
        if not row.samples:
            self._scheduler.commit(row, ())
            return
        if not row.generated:
            sequence.wants_prompt_logits = False
            self._requests[sequence.request_id].note_token(now)
        how = how if generation.request.speculation else None  # It asked for none: count no miss.
        longest = self._limits.max_model_len
        tokens = generation.settle(decided.tokens, longest, row.num_drafted, how, decided.tree)
        if tokens:  # Empty if the grammar allowed no token: then the sequence has ended.
            self._scheduler.commit(row, tokens)
        self._without_text.append(generation)
        if generation.stop is not None:
            self._end(sequence)

    def _increment(self, generation: Generation, results: list[StepResult]) -> Increment:
        for result in results:
            self._lengths[result.num_drafted] += 1
            result.note_in(self._speculation)
        return generation.increment(results)

    def _collect_finished(self, candidates: list[RunningRequest]) -> tuple[RequestOutput, ...]:
        now = self._clock()
        outputs = []
        for running in candidates:
            if running.is_finished:
                outputs.append(running.output(now))
                del self._requests[running.request.request_id]
                for generation in running.generations:
                    del self._generations[generation.sequence.seq_id]
        return tuple(outputs)
