"""Runs one batch of prompts through an engine and records times, rows and accepted tokens.

Knows the engine's step loop and clocks. Does not know cases or files.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ssd.bench.records import PromptRecord
from ssd.decoding.rows import DraftStep, StepTimes
from ssd.engine.core import EngineCore
from ssd.engine.outputs import EngineStats, RequestOutput
from ssd.engine.request import Request


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
        self._outputs: dict[str, RequestOutput] = {}
        self._steps: list[StepTimes] = []
        self._draft_steps: list[DraftStep] = []

    def run(self, requests: Sequence[Request]) -> list[PromptRecord]:
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
        return [self._record(self._outputs[each.request_id], totals) for each in requests]

    def _step(self) -> None:
        core = self._core
        computes = core.num_running + core.num_waiting > 0
        self._outputs.update({output.request_id: output for output in core.step().finished})
        if computes:
            self._steps.append(core.decoder.times)
            self._draft_steps += core.decoder.proposer.draft_steps()

    def _record(self, output: RequestOutput, totals: _BatchTotals) -> PromptRecord:
        completion, timings = output.outputs[0], output.timings
        stats = completion.speculation
        num_prompt, works_ahead = len(output.prompt_token_ids), totals.after.draft is not None
        in_turns = sum(each.ended - each.started for each in self._draft_steps) / totals.size
        drafted_rows = sum(each.num_rows for each in self._draft_steps) / totals.size
        rounds = [times.verify for times in self._steps if times.is_generating]
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
            seconds=totals.seconds / totals.size,
            step_seconds=totals.share("step_seconds"),
            verify_seconds=totals.share("verify_seconds"),
            wait_seconds=totals.share("wait_seconds"),
            target_rows=sum(times.num_rows for times in self._steps) / totals.size,
            # In mode sd the draft reads the prompt and then computes a row for each drafted token.
            draft_rows=drafted_rows if works_ahead else stats.drafted + bool(stats.drafted) * num_prompt,
            draft_steps=totals.draft_share("num_steps"),
            draft_seconds=totals.draft_share("draft_seconds") if works_ahead else in_turns,
            round_seconds=sum(rounds) / totals.size,
            round_steps=len(rounds) / totals.size,
        )
