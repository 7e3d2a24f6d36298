"""Speculative speculative decoding (SSD): the draft works ahead while the target verifies.

What is speculated, and how much of it, is the policy's (draft/policy.py); here it meets a runner. Every token
is the target's own (see verification.py), so the draft may be slow, wrong or dead.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ssd.config import Acceptance
from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.decoding.decoder import Decided, DecodeRow, DraftContext, DraftStep, Speculation
from ssd.draft.client import Path
from ssd.draft.line import DraftSource, LineStats
from ssd.draft.policy import Policy, Verified
from ssd.draft.wire_sampling import wire_sampling
from ssd.runtime.runner import AsyncRunner, Runner
from ssd.sampling import DraftDistribution, Proposal

_LOOK_UP_SECONDS = 0.0002
"""How often the end of a forward is looked for, and words of the draft."""


class ParallelDecoder(AutoregressiveDecoder):
    is_drafting = True

    def __init__(
        self,
        target: Runner,
        policy: Policy,
        *,
        acceptance: Acceptance = "coupled",
        saguaro: float = 1.0,
    ) -> None:
        super().__init__(target)
        self.policy = policy
        self._ratio, self._saguaro = acceptance == "ratio", saguaro

    @property
    def line_stats(self) -> LineStats:  # type: ignore[override]  # a constant None where there is no line
        return self.policy.stats

    def begin(self, context: DraftContext) -> None:
        if context.seq_id not in self.policy:
            row = context.sampling
            sampling = wire_sampling(row, ratio=self._ratio, saguaro=self._saguaro)
            self.policy.begin(context.seq_id, row.prompt, row.output, sampling, context.max_len)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        for context in contexts:
            self.begin(context)
        return [_speculation(path) for path in self.policy.propose([each.seq_id for each in contexts])]

    def step(self, rows: Sequence[DecodeRow], meanwhile: Callable[[], None] = lambda: None) -> list[Decided]:
        def read_too() -> None:
            meanwhile()
            self._read_while_computing()

        results = super().step(rows, read_too)
        proposed = self.policy.proposed
        self.times = replace(self.times, wait=proposed.waited, num_ready=proposed.num_ready)
        decided = [place for place, row in enumerate(rows) if row.sampling is not None]
        outcomes = [_verified(rows[place], results[place]) for place in decided]
        seconds = self.times.verify if self.times.is_generating else None
        rounds = self.policy.settle(outcomes, self.times.num_rows, seconds)
        for place, how in zip(decided, rounds, strict=True):
            results[place] = replace(results[place], round=how)
        return results

    def _read_while_computing(self) -> None:
        """What the draft says during a forward is in the mirrors when it ends."""
        self.policy.take_in()
        runner = self._runner
        if isinstance(runner, AsyncRunner):
            while not runner.is_done():
                time.sleep(_LOOK_UP_SECONDS)
                self.policy.take_in()

    def forget(self, seq_id: int) -> None:
        self.policy.forget(seq_id)

    def draft_steps(self) -> list[DraftStep]:
        return [DraftStep(*span) for span in self.policy.client.take_step_spans()]

    def replace_draft(self, source: DraftSource) -> None:
        self.policy.replace(source)

    def close(self) -> None:
        self.policy.close()


def _verified(row: DecodeRow, decided: Decided) -> Verified:
    return Verified(row.seq_id, [each.token for each in decided.tokens], row.num_drafted)


def _speculation(path: Path) -> Speculation:
    if path.drawn is None:
        return Speculation(tuple(path.tokens))
    pairs = zip(path.tokens, path.drawn, strict=True)
    return Speculation(
        tuple(path.tokens), tuple(Proposal(token, DraftDistribution(*drawn)) for token, drawn in pairs)
    )
