"""Speculative decoding (SD): draft and target take turns on the same hardware.

The honest baseline for decoding in which the draft works ahead: how much is guessed is decided by the same
controller. Only that here the time of a step is that of its guesses too, and chances are those of earlier
guesses, since they are needed before anything is guessed. Where a number of guesses is asked for, it is kept.
"""

import time
from collections.abc import Sequence

from ssd.decoding.drafter import Drafter
from ssd.decoding.proposer import ContextOf, Places, Proposer, Rounds
from ssd.decoding.rows import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.draft.client.auto_disable import AutoDisable
from ssd.draft.client.branching import depths_of
from ssd.draft.client.client import Path
from ssd.draft.client.controller import Controller
from ssd.draft.client.proposals import num_forced

HOPED_RATE = 0.7
"""How often a draft is taken to be right until it has shown it."""


class DraftInTurns(Proposer):
    is_drafting = True
    takes_turns = True

    def __init__(self, drafter: Drafter, controller: Controller | None = None, *, num_trees: int = 0) -> None:
        """Without a controller every sequence gets the whole lookahead in every step, as one path.

        `num_trees`: as many sequences as a verification can take several paths of.
        """
        self._drafter = drafter
        self._controller = controller
        self.num_trees = num_trees
        """May change between two proposals."""
        self._verifying = Controller()
        """By the times of verifications alone, for when all guesses are there."""
        self._num_others = 0
        """Of the latest proposals, nodes beside the likeliest paths."""
        self._num_forced: dict[int, int] = {}
        """Likewise, how many tokens each began with that had to follow by its grammar."""
        self._worth = AutoDisable()
        self._draft_steps: list[DraftStep] = []

    def propose(self, seq_ids: Sequence[int], context_of: ContextOf, places: Places) -> list[Speculation]:
        started = time.monotonic()
        contexts = [context_of(each) for each in seq_ids]
        lengths = self._lengths(contexts, places)
        self._num_others = 0
        if lengths is not None and any(lengths) and len(contexts) <= self.num_trees:
            paths = self._drafter.propose_trees(contexts, lengths, places)
            proposed = self._worth_verifying(paths, time.monotonic() - started)
        else:
            proposed = self._drafter.propose(contexts, lengths, places)
        self._draft_steps = [DraftStep(started, time.monotonic(), len(contexts))] if contexts else []
        return proposed

    def _worth_verifying(self, paths: Sequence[Path], spent: float) -> list[Speculation]:
        """Of all guesses, after so many seconds for them, those that yield most."""
        chains = [path.chain() for path in paths]
        lengths, has_trees = self._verifying.choose_form(
            [path.chances for path in paths], [path.chances for path in chains], len(paths), spent=spent
        )
        pairs = zip(paths if has_trees else chains, lengths, strict=True)
        chosen = [path.cut(length) for path, length in pairs]
        self._num_others = sum(len(path.tokens) - len(path.chain().tokens) for path in chosen)
        return [
            Speculation(tuple(path.tokens), parents=None if path.parents is None else tuple(path.parents))
            for path in chosen
        ]

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided], times: StepTimes) -> Rounds:
        if self._controller is not None:
            self._learn(self._controller, self._guessed(rows, decided), rows, times)
        return super().settle(rows, decided, times)

    def forget(self, seq_id: int) -> None:
        self._drafter.forget(seq_id)

    def draft_steps(self) -> list[DraftStep]:
        return self._draft_steps

    def _lengths(self, contexts: Sequence[DraftContext], places: Places) -> list[int] | None:
        if self._controller is None:
            return None
        rooms = {each.seq_id: self._drafter.room(each) for each in contexts}
        self._num_forced = {each: num_forced(places[each], rooms[each]) for each in places if each in rooms}
        forced = [self._num_forced.get(each, 0) for each in rooms]
        if self._worth.is_resting:
            return forced
        chances = [
            [1.0] * count + self._controller.guess_chances(room - count)
            for count, room in zip(forced, rooms.values(), strict=True)
        ]
        return self._controller.choose(chances, len(contexts))

    def _guessed(self, rows: Sequence[DecodeRow], decided: Sequence[Decided]) -> list[tuple[int, int]]:
        """Of each row that had guesses how many tokens deep they were, and how many were accepted.

        What had to follow by a grammar was no guess.
        """
        found = []
        for row, each in zip(rows, decided, strict=True):
            forced = self._num_forced.get(row.seq_id, 0)
            depth = max(depths_of(row.parents, row.num_drafted), default=0)
            if depth > forced:
                found.append((depth - forced, max(0, len(each.tokens) - 1 - forced)))
        return found

    def _learn(
        self,
        controller: Controller,
        guessed: Sequence[tuple[int, int]],
        rows: Sequence[DecodeRow],
        times: StepTimes,
    ) -> None:
        """How often guesses are right and what they cost."""
        for depth, num_accepted in guessed:
            for place in range(min(depth, num_accepted + 1)):
                controller.note_guess(accepted=place < num_accepted)
        if guessed:
            self._worth.note_round(sum(num for _, num in guessed) / len(guessed))
        else:
            controller.note_no_guess()
        self._worth.note_step()
        if not times.is_generating:
            return
        is_speculating = any(row.num_drafted for row in rows)
        self._verifying.times.note(
            times.num_rows, times.verify, is_speculating=is_speculating, has_trees=self._num_others > 0
        )
        if not (guessed and self._drafter.has_read_texts):
            # What only stands beside the path took no time to guess.
            seconds = times.verify + sum(each.ended - each.started for each in self._draft_steps)
            num_rows = times.num_rows - self._num_others
            controller.times.note(num_rows, seconds, is_speculating=is_speculating)
