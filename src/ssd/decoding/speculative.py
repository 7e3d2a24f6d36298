"""Speculative decoding (SD): draft and target take turns on the same hardware.

The honest baseline for decoding in which the draft works ahead: how much is guessed is decided by the same
controller. Only that here the time of a step is that of its guesses too, and chances are those of earlier
guesses, since they are needed before anything is guessed. Where a number of guesses is asked for, it is kept.
"""

import time
from collections.abc import Callable, Sequence

from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.decoding.decoder import Decided, DecodeRow, DraftContext, DraftStep, Speculation
from ssd.decoding.drafter import Drafter
from ssd.draft.controller import Controller
from ssd.draft.worth import Worth
from ssd.runtime.runner import Runner

HOPED_RATE = 0.7
"""How often a draft is taken to be right until it has shown it."""


class SpeculativeDecoder(AutoregressiveDecoder):
    is_drafting = True

    def __init__(self, target: Runner, drafter: Drafter, controller: Controller | None = None) -> None:
        """Without a controller every sequence gets the whole lookahead in every step."""
        super().__init__(target)
        self._drafter = drafter
        self._controller = controller
        self._worth = Worth()
        self._draft_steps: list[DraftStep] = []

    @property
    def is_async(self) -> bool:
        """The draft's forwards come before the target's next one: text would wait for all of them."""
        return False

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        started = time.monotonic()
        proposed = self._drafter.propose(contexts, self._lengths(contexts))
        self._draft_steps = [DraftStep(started, time.monotonic(), len(contexts))] if contexts else []
        return proposed

    def step(self, rows: Sequence[DecodeRow], meanwhile: Callable[[], None] = lambda: None) -> list[Decided]:
        results = super().step(rows, meanwhile)
        if self._controller is not None:
            self._learn(self._controller, rows, results)
        return results

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

    def _learn(self, controller: Controller, rows: Sequence[DecodeRow], results: Sequence[Decided]) -> None:
        """From the outcome of a step: how often guesses are right, and what they cost."""
        accepted = list[int]()
        for row, decided in zip(rows, results, strict=True):
            if not row.num_drafted:
                continue
            accepted.append(len(decided.tokens) - 1)
            for place in range(min(row.num_drafted, accepted[-1] + 1)):
                controller.note_guess(accepted=place < accepted[-1])
        if accepted:
            self._worth.note_round(sum(accepted) / len(accepted))
        else:
            controller.note_no_guess()
        self._worth.note_step()
        if self.times.is_generating and not (accepted and self._drafter.has_read_texts):
            seconds = self.times.verify + sum(each.ended - each.started for each in self._draft_steps)
            controller.times.note(self.times.num_rows, seconds, is_speculating=bool(accepted))
