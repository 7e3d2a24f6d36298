"""Runs one batch of prompts through an engine and records times, rows and accepted tokens.

Knows the engine's step loop and clocks. Does not know cases or files.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssd.bench.records import Lane, PromptRecord, TimelineSpan
from ssd.decoding.rows import DraftStep, StepTimes
from ssd.engine.core import EngineCore, StepOutput
from ssd.engine.outputs import EngineStats, RequestOutput
from ssd.engine.request import Request

_SKIPPED_STEPS, _KEPT_STEPS = 3, 10
"""Steps of the timeline: the first ones are skipped, since prompt and first rounds differ from the rest."""


@dataclass(frozen=True, slots=True)
class _TimedStep:
    started: float
    ended: float
    times: StepTimes


@dataclass(frozen=True, slots=True)
class _BatchTotals:
    """Totals of the batch, which are divided equally among its prompts."""

    before: EngineStats
    after: EngineStats
    seconds: float
    size: int

    def share(self, name: str) -> float:
        used: float = getattr(self.after, name) - getattr(self.before, name)
        return used / self.size

    def draft_share(self, name: str) -> float:
        """Like `share`, of the statistics of a draft in another process; 0 if there is none."""
        if self.after.draft is None or self.before.draft is None:
            return 0.0
        used: float = getattr(self.after.draft, name) - getattr(self.before.draft, name)
        return used / self.size


class BatchMeter:
    """Measures one batch; make a new one for each."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._depths = defaultdict[str, Counter[int]](Counter)
        self._outputs: dict[str, RequestOutput] = {}
        self._steps: list[_TimedStep] = []
        self._draft_steps: list[DraftStep] = []

    def run(self, requests: Sequence[Request], *, keep_spans: bool) -> list[PromptRecord]:
        core, before = self._core, self._core.stats
        core.decoder.proposer.draft_steps()  # Discard those of earlier requests.
        started = time.monotonic()
        try:
            for request in requests:
                core.add(request)
            while core.has_work:
                self._step()
        finally:
            for request in requests:
                core.abort(request.request_id)
        totals = _BatchTotals(before, core.stats, time.monotonic() - started, len(requests))
        records = [self._record(self._outputs[each.request_id], totals) for each in requests]
        return [replace(records[0], spans=self._spans()), *records[1:]] if keep_spans else records

    def _step(self) -> None:
        core, started = self._core, time.monotonic()
        computes = core.num_running + core.num_waiting > 0
        self._note(core.step())
        if computes:
            self._steps.append(_TimedStep(started, time.monotonic(), core.decoder.times))
            self._draft_steps += core.decoder.proposer.draft_steps()

    def _note(self, step: StepOutput) -> None:
        for increment in step.increments:
            accepted = sum(origin != "target" for origin in increment.origins)
            self._depths[increment.request_id][accepted] += 1
        self._outputs.update({output.request_id: output for output in step.finished})

    def _record(self, output: RequestOutput, totals: _BatchTotals) -> PromptRecord:
        completion, timings = output.outputs[0], output.timings
        stats, depths = completion.speculation, self._depths[output.request_id]
        num_prompt, works_ahead = len(output.prompt_token_ids), totals.after.draft is not None
        in_turns = sum(each.ended - each.started for each in self._draft_steps) / totals.size
        drafted_rows = sum(each.num_rows for each in self._draft_steps) / totals.size
        rounds = [step.times.verify for step in self._steps if step.times.is_generating]
        return PromptRecord(
            tokens=completion.token_ids,
            num_prompt=num_prompt,
            first_token=timings.first_token,
            seconds_per_token=timings.per_output_token or timings.total,
            rounds=stats.rounds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            hits=stats.hits,
            late=stats.late,
            unknown=stats.unknown,
            unheard=stats.unheard,
            depths=[depths[depth] for depth in range(max(depths) + 1)],
            seconds=totals.seconds / totals.size,
            step_seconds=totals.share("step_seconds"),
            verify_seconds=totals.share("verify_seconds"),
            wait_seconds=totals.share("wait_seconds"),
            target_rows=sum(step.times.num_rows for step in self._steps) / totals.size,
            # In mode sd the draft reads the prompt and then computes a row for each drafted token.
            draft_rows=drafted_rows if works_ahead else stats.drafted + bool(stats.drafted) * num_prompt,
            draft_steps=totals.draft_share("num_steps"),
            draft_seconds=totals.draft_share("draft_seconds") if works_ahead else in_turns,
            round_seconds=sum(rounds) / totals.size,
            round_steps=len(rounds) / totals.size,
        )

    def _spans(self) -> list[TimelineSpan]:
        """The spans of a few rounds, relative to the start of the first."""
        steps = self._steps[_SKIPPED_STEPS : _SKIPPED_STEPS + _KEPT_STEPS]
        if not steps:
            return []
        origin, end = steps[0].started, steps[-1].ended
        spans = [span for step in steps for span in _spans_of(step, self._prepares_from(step), origin)]
        for step in self._draft_steps:
            if step.ended > origin and step.started < end:
                spans += _span("draft", max(step.started, origin), step.ended, origin, step.num_rows)
        return spans

    def _prepares_from(self, step: _TimedStep) -> float:
        """When the host's work begins: in mode sd, after the draft's steps."""
        if self._core.decoder.proposer.draft_stats is not None:
            return step.started
        ends = [each.ended for each in self._draft_steps if step.started <= each.started < step.ended]
        return max(ends, default=step.started)


def _spans_of(step: _TimedStep, prepares_from: float, origin: float) -> list[TimelineSpan]:
    times = step.times
    waited_from, verified = times.verify_started - times.wait, times.verify_started + times.verify
    return [
        *_span("host", prepares_from, waited_from, origin),
        *_span("wait", waited_from, times.verify_started, origin),
        *_span("target", times.verify_started, verified, origin, times.num_rows),
        *_span("host", verified, step.ended, origin),
    ]


def _span(lane: Lane, started: float, ended: float, origin: float, rows: int = 0) -> list[TimelineSpan]:
    if ended <= started:
        return []
    return [
        TimelineSpan(lane=lane, started=round(started - origin, 6), ended=round(ended - origin, 6), rows=rows)
    ]
