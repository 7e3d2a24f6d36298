"""Keeps vLLM's requests open at the draft: sends outcomes, asks for proposals, closes them.

Follows the scheduler's output by request id and passes it to the speculator. Knows vLLM's records by field
name and needs no vLLM. May be dropped at any time: it proposes tokens and never decides one.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssd.draft.client.speculator import Round, Speculator, Verified
from ssd.draft.protocol.codec import UnsendableError
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.requests import draft_name_of, max_len_of, text_of, why_declined, wire_sampling

_PADDING = 0
"""Any token: padding never changes what is sampled."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """What a step verifies, as the scheduler decided it."""

    number: int
    """Larger than that of every earlier step."""
    num_drafted: Mapping[str, int]
    """By request: number of drafted tokens, padding included."""
    num_rows: int
    most_proposed: int
    """How many tokens vLLM lets be drafted for each request of the next step."""
    is_generating: bool
    """Whether all rows generate: none computes a prompt, and none recomputes a preempted text."""
    started: float


_NO_STEP = ScheduledStep(0, {}, 0, 0, is_generating=False, started=0.0)
_STEP_NUMBERS = itertools.count(1)
"""One counter for all `Sessions` of a process. So a step of closed `Sessions` has a smaller number than the
first step of each request of new `Sessions`."""


@dataclass(slots=True)
class _OpenRequest:
    first_step: int
    """Number of the step that it was opened in. Earlier steps sampled for an earlier session of its id."""
    num_proposed: int = 0
    """Number of tokens that were last proposed for it, without padding."""


class Sessions:
    def __init__(
        self,
        speculator: Speculator,
        seed_of: Callable[[str], int],
        *,
        max_model_len: int,
        coupled: bool = True,
        noise: str = "philox",
        reopens_preempted: bool = False,
        padded_to: int = 0,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`seed_of` returns a request's seed; `noise` is the name of the noise that vLLM samples with.

        `reopens_preempted`: requests that vLLM preempts come back as new ones, which V2 does. `padded_to`:
        length of all proposals; 0: no padding.
        """
        self.speculator = speculator
        self.meter = meter or Meter()
        self._seed_of = seed_of
        self._max_model_len = max_model_len
        self._coupled, self._noise, self._padded_to = coupled, noise, padded_to
        self._reopens_preempted = reopens_preempted
        self._clock = clock
        self._live: dict[str, _OpenRequest] = {}
        self._step = _NO_STEP
        """The latest step that began."""
        self._settled: list[str] = []
        """Requests of the latest step that need a proposal."""
        self._num_draft_rows = 0
        """Rows that were added to the meter, which also counts earlier sessions."""
        self.is_attached = True

    def begin(self, scheduled: Any) -> ScheduledStep:
        """Before a forward: close finished requests, open new ones, note what is verified."""
        started, number = self._clock(), next(_STEP_NUMBERS)
        for request_id in scheduled.finished_req_ids:
            self._forget(request_id)
        if self._reopens_preempted:
            for request_id in scheduled.preempted_req_ids or ():
                self._forget(request_id)
        for new in scheduled.scheduled_new_reqs:
            self._open(new, number)
        drafted = scheduled.scheduled_spec_decode_tokens
        num_drafted = {request_id: len(tokens) for request_id, tokens in drafted.items()}
        num_rows = scheduled.total_num_scheduled_tokens
        # A generating request has one row more than drafted tokens. One that computes its text has more.
        num_generated = len(scheduled.num_scheduled_tokens) + sum(num_drafted.values())
        is_generating = not scheduled.scheduled_new_reqs and num_rows == num_generated > 0
        ended = self._clock()
        self.meter.add("host_seconds", "begin", ended - started)
        most_proposed = scheduled.num_spec_tokens_to_schedule
        self._step = ScheduledStep(number, num_drafted, num_rows, most_proposed, is_generating, ended)
        return self._step

    def take_in(self) -> None:
        """Read the draft's messages while the device computes."""
        self.speculator.take_in()

    def settle(
        self,
        request_ids: Sequence[str],
        tokens: Sequence[Sequence[int]],
        step: ScheduledStep | None = None,
        num_proposed: Mapping[str, int] | None = None,
    ) -> None:
        """After a verification: send each request's new tokens to the draft, if it has any.

        `step`: the step that sampled them, if others have begun since. `num_proposed`: where the device
        chooses tokens, how many it chose in the step before, by request.
        """
        started = self._clock()
        step = step or self._step
        if num_proposed is not None:
            self._note_proposed(num_proposed, step)
        outcomes = [
            Verified(request_id, decided, min(step.num_drafted.get(request_id, 0), live.num_proposed))
            for request_id, decided in zip(request_ids, tokens, strict=True)
            if decided and (live := self._live.get(request_id)) is not None and live.first_step <= step.number
        ]
        # Where the device chooses tokens, steps overlap: the time until here is not that of one step.
        is_timed = step.is_generating and num_proposed is None
        seconds = started - step.started if is_timed else None
        rounds = self.speculator.settle(outcomes, step.num_rows, seconds)
        self._count(outcomes, rounds, step)
        self._settled = [str(each.request_id) for each in outcomes]
        self._show()
        self.meter.add("host_seconds", "settle", self._clock() - started)

    def propose(self) -> tuple[list[str], list[list[int]]]:
        """The requests of the latest step, and the tokens to verify for each."""
        started = self._clock()
        asked, self._settled = [each for each in self._settled if each in self._live], []
        if not asked or not self.is_attached:
            return asked, [[] for _ in asked]
        most = self._step.most_proposed
        paths = [[int(token) for token in path.tokens[:most]] for path in self.speculator.propose(asked)]
        for each, path in zip(asked, paths, strict=True):
            self._live[each].num_proposed = len(path)
        if self._padded_to and any(paths):
            paths = [path + [_PADDING] * (min(self._padded_to, most) - len(path)) for path in paths]
        waited = self.speculator.proposed.waited
        self.meter.add("wait_seconds", amount=waited)
        self.meter.add("host_seconds", "propose", self._clock() - started - waited)
        return asked, paths

    def seqs(self, request_ids: Sequence[str]) -> list[int]:
        """Reads the draft's messages and returns the `seq` of each request, -1 for one that has none.

        For asynchronous V2, whose device chooses drafted tokens. Requires the lock of the client's pool.
        """
        self.speculator.take_in()
        return self.speculator.seqs(request_ids)

    def attach(self) -> None:
        """Draft for requests that begin from now on."""
        self.is_attached = True

    def detach(self) -> None:
        """Stop drafting, but stay connected."""
        self.is_attached = False
        for request_id in list(self._live):
            self._forget(request_id)

    def report(self) -> dict[str, float]:
        self._show()
        cost = self.speculator.controller.times.cost()
        return {**self.meter.report(), "step_seconds": cost.fixed, "step_seconds_per_row": cost.slope}

    def close(self) -> None:
        self.speculator.close()

    def _open(self, new: Any, step_number: int) -> None:
        if not self.is_attached:
            return
        if new.req_id in self._live:
            self.meter.add("spec_sessions_reopened")
            self._forget(new.req_id)
        reason = why_declined(new)
        if reason:
            self.meter.add("spec_declined", reason)
            return
        try:
            seed = self._seed_of(new.req_id)
            sampling = wire_sampling(new.sampling_params, seed, coupled=self._coupled, noise=self._noise)
            max_len = max_len_of(new, self._max_model_len)
            name = draft_name_of(new)
            prompt, output = new.prompt_token_ids, text_of(new)[len(new.prompt_token_ids) :]
            self.speculator.begin(new.req_id, prompt, output, sampling, max_len, draft_name=name)
        except (UnsendableError, OverflowError):  # OverflowError: a token of its prompt that no model has.
            self.meter.add("spec_declined", "parameters")
            return
        self._live[new.req_id] = _OpenRequest(step_number)
        self.meter.add("spec_sessions_opened")

    def _note_proposed(self, num_proposed: Mapping[str, int], step: ScheduledStep) -> None:
        """A request that was not in the step before keeps its number: vLLM keeps its drafted tokens too."""
        for request_id, count in num_proposed.items():
            live = self._live.get(request_id)
            # `count` is older than `step`. If `step` opened the request, an earlier session of its id had it.
            if live is not None and live.first_step < step.number:
                live.num_proposed = count

    def _forget(self, request_id: str) -> None:
        if self._live.pop(request_id, None) is not None:
            self.speculator.forget(request_id)

    def _count(self, outcomes: Sequence[Verified], rounds: Sequence[Round], step: ScheduledStep) -> None:
        causes = [round_.cause for round_ in rounds]
        tally = defaultdict[tuple[str, str], int](int)
        tally["rounds", ""], tally["spec_hits", ""] = len(outcomes), causes.count("hit")
        for cause in {*causes} - {"hit", "first"}:
            tally["spec_misses", cause] = causes.count(cause)
        for each, how in zip(outcomes, rounds, strict=True):
            tally["spec_padding_tokens", ""] += (
                step.num_drafted.get(str(each.request_id), 0) - each.num_drafted
            )
            tally["spec_decode_num_draft_tokens", how.source] += each.num_drafted
            tally["spec_decode_num_accepted_tokens", how.source] += min(
                len(each.tokens) - 1, each.num_drafted
            )
        # Once a step, not once a request: exported counters take their time.
        for (name, label), amount in tally.items():
            if amount:
                self.meter.add(name, label, amount)

    def _show(self) -> None:
        stats = self.speculator.client.stats
        self.meter.show(
            spec_sessions=len(self._live),
            draft_up=float(self.speculator.client.is_ready),
            draft_resting=float(self.speculator.is_resting),
            draft_connects=stats.num_connects,
            draft_losses=stats.num_losses,
            draft_declined=stats.num_declined,
            drafts_ready=stats.num_ready,
            draft_moved=stats.num_moved,
            draft_resyncs=stats.num_resyncs,
            draft_frames=stats.num_frames,
            draft_step_seconds=stats.step_seconds,
        )
        self.meter.name(draft_tenant=stats.tenant)
        if rows := stats.num_own_rows - self._num_draft_rows:
            self._num_draft_rows = stats.num_own_rows
            self.meter.add("draft_rows", amount=rows)
