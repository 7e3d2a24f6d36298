"""Speculative speculative decoding (SSD): the draft works ahead while the target verifies.

The speculator (draft/client/speculator.py) decides what to propose; this file connects it to the engine's
rows. Every token is the target's own (see verification.py), so the draft may be slow, wrong or dead.
"""

import time
from collections.abc import Callable, Sequence

from ssd.decoding.proposer import ContextOf, GrammarStates, Proposer, Rounds
from ssd.decoding.rows import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.draft.client.proposals import DraftedTokens
from ssd.draft.client.replica import PoolStats
from ssd.draft.client.speculator import Proposed, Speculator, Verified
from ssd.draft.protocol.messages import Sampling
from ssd.sampling import SamplingRow

_LOOK_UP_SECONDS = 0.00005
"""Poll interval for the end of a forward and for the draft's messages."""


_NOTHING = Speculation()


class DraftAhead(Proposer):
    is_drafting = True

    def __init__(self, speculator: Speculator) -> None:
        self.speculator = speculator

    @property
    def proposed(self) -> Proposed:
        return self.speculator.proposed

    @property
    def draft_stats(self) -> PoolStats:
        return self.speculator.stats

    def begin(self, context: DraftContext) -> None:
        if context.seq_id not in self.speculator:
            row = context.sampling
            self.speculator.begin(
                context.seq_id,
                row.prompt,
                row.output,
                _wire_sampling(row),
                context.max_len,
                draft_name=row.params.draft,
            )

    def propose(
        self, seq_ids: Sequence[int], context_of: ContextOf, states: GrammarStates
    ) -> list[Speculation]:
        for seq_id in self.speculator.unknown_among(seq_ids):
            self.begin(context_of(seq_id))
        return [_speculation(path) for path in self.speculator.propose(seq_ids, states)]

    def take_in(self, is_done: Callable[[], bool]) -> None:
        """Reads the draft's messages into the mirrors until the forward is done."""
        self.speculator.take_in()
        while not is_done():
            time.sleep(_LOOK_UP_SECONDS)
            self.speculator.take_in()

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided], times: StepTimes) -> Rounds:
        outcomes = [
            Verified(row.seq_id, [token.token for token in each.tokens], row.num_drafted)
            for row, each in zip(rows, decided, strict=True)
            if row.sampling is not None
        ]
        seconds = times.verify if times.is_generating else None
        rounds = iter(self.speculator.settle(outcomes, times.num_rows, seconds))
        return [None if row.sampling is None else next(rounds) for row in rows]

    def forget(self, seq_id: int) -> None:
        self.speculator.forget(seq_id)

    def draft_steps(self) -> list[DraftStep]:
        return [DraftStep(*span) for span in self.speculator.client.pool.take_step_spans()]

    def close(self) -> None:
        self.speculator.close()


def _speculation(path: DraftedTokens) -> Speculation:
    parents = None if path.parents is None else tuple(path.parents)
    return Speculation(tuple(path.tokens), parents) if path.tokens else _NOTHING


def _wire_sampling(row: SamplingRow) -> Sampling:
    """The sampling parameters that a draft needs, as they are sent to it."""
    params = row.params
    return Sampling(
        seed=row.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        logit_bias=list(params.bias),
        end_ids=list(row.end_ids),
        bad_word_ids=[list(word) for word in row.bad_word_ids],
    )
