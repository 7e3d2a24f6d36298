"""Speculative decoding (SD): draft and target take turns on the same hardware.

The honest baseline for decoding in which the draft works ahead: how much is guessed is decided by the same
controller. Only that here the time of a step is that of its guesses too, and chances are those of earlier
guesses, since they are needed before anything is guessed. Where a number of guesses is asked for, it is kept.
"""

import time
from collections.abc import Sequence

from ssd.decoding.drafter import Drafter
from ssd.decoding.proposer import ContextOf, Proposer, Rounds
from ssd.decoding.rows import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.draft.controller import Controller
from ssd.draft.worth import Worth

HOPED_RATE = 0.7
"""How often a draft is taken to be right until it has shown it."""


class DraftInTurns(Proposer):
    is_drafting = True
    takes_turns = True

    def __init__(self, drafter: Drafter, controller: Controller | None = None) -> None:
        """Without a controller every sequence gets the whole lookahead in every step."""
        self._drafter = drafter
        self._controller = controller
        self._worth = Worth()
        self._draft_steps: list[DraftStep] = []

    def propose(self, seq_ids: Sequence[int], context_of: ContextOf) -> list[Speculation]:
        started = time.monotonic()
        contexts = [context_of(each) for each in seq_ids]
        proposed = self._drafter.propose(contexts, self._lengths(contexts))
        self._draft_steps = [DraftStep(started, time.monotonic(), len(contexts))] if contexts else []
        return proposed

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided], times: StepTimes) -> Rounds:
        if self._controller is not None:
            accepted = [
                (row.num_drafted, len(each.tokens) - 1)
                for row, each in zip(rows, decided, strict=True)
                if row.num_drafted
            ]
            self._learn(self._controller, accepted, times)
        return super().settle(rows, decided, times)

    def forget(self, seq_id: int) -> None:
        self._drafter.forget(seq_id)

    def draft_steps(self) -> list[DraftStep]:
        return self._draft_steps

    def _lengths(self, contexts: Sequence[DraftContext]) -> list[int] | None:
        if self._controller is None:
            return None
        if self._worth.is_resting:
            return [0] * len(contexts)
        chances = [self._controller.guess_chances(self._drafter.room(each)) for each in contexts]
        return self._controller.choose(chances, len(contexts))

    def _learn(self, controller: Controller, accepted: Sequence[tuple[int, int]], times: StepTimes) -> None:
        """How often guesses are right and what they cost; of each row, how many were drafted and accepted."""
        for num_drafted, num_accepted in accepted:
            for place in range(min(num_drafted, num_accepted + 1)):
                controller.note_guess(accepted=place < num_accepted)
        if accepted:
            self._worth.note_round(sum(num for _, num in accepted) / len(accepted))
        else:
            controller.note_no_guess()
        self._worth.note_step()
        if times.is_generating and not (accepted and self._drafter.has_read_texts):
            seconds = times.verify + sum(each.ended - each.started for each in self._draft_steps)
            controller.times.note(times.num_rows, seconds, is_speculating=bool(accepted))
