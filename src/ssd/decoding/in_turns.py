"""Speculative decoding (SD): draft and target take turns on the same hardware.

A fair baseline for SSD: the same controller decides how many tokens to draft. The differences: the time of a
step includes drafting, and acceptance probabilities come from earlier steps, because they are needed before
drafting. A fixed lookahead in the settings is always used in full.
"""

import time
from collections.abc import Sequence

from ssd.decoding.drafter import Drafter
from ssd.decoding.proposer import ContextOf, GrammarStates, Proposer, Rounds
from ssd.decoding.rows import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.draft.client.controller import AutoDisable, Controller
from ssd.draft.client.proposals import DraftedTokens, depths_of, num_forced

HOPED_RATE = 0.7
"""The acceptance rate assumed before any is measured."""


class DraftInTurns(Proposer):
    is_drafting = True
    takes_turns = True

    def __init__(self, drafter: Drafter, controller: Controller | None = None, *, num_trees: int = 0) -> None:
        """Without a controller every sequence gets the whole lookahead in every step, as one path.

        `num_trees`: how many sequences of a step may have a tree.
        """
        self._drafter = drafter
        self._controller = controller
        self.num_trees = num_trees
        """May change between two proposals."""
        self._verifying = Controller()
        """Learns from verification times alone: chooses what to verify once all tokens are drafted."""
        self._num_others = 0
        """Nodes of the latest proposals beside the likeliest paths."""
        self._num_forced: dict[int, int] = {}
        """How many tokens at the start of each of the latest proposals the grammar forced, by sequence."""
        self._auto_disable = AutoDisable()
        self._draft_steps: list[DraftStep] = []

    def propose(
        self, seq_ids: Sequence[int], context_of: ContextOf, states: GrammarStates
    ) -> list[Speculation]:
        started = time.monotonic()
        contexts = [context_of(each) for each in seq_ids]
        lengths = self._lengths(contexts, states)
        self._num_others = 0
        if lengths is not None and any(lengths) and len(contexts) <= self.num_trees:
            paths = self._drafter.propose_trees(contexts, lengths, states)
            proposed = self._worth_verifying(paths, time.monotonic() - started)
        else:
            proposed = self._drafter.propose(contexts, lengths, states)
        self._draft_steps = [DraftStep(started, time.monotonic(), len(contexts))] if contexts else []
        return proposed

    def _worth_verifying(self, paths: Sequence[DraftedTokens], spent: float) -> list[Speculation]:
        """The drafted tokens that are worth verifying. `spent`: seconds that drafting took."""
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

    def _lengths(self, contexts: Sequence[DraftContext], states: GrammarStates) -> list[int] | None:
        if self._controller is None:
            return None
        rooms = {each.seq_id: self._drafter.room(each) for each in contexts}
        self._num_forced = {each: num_forced(states[each], rooms[each]) for each in states if each in rooms}
        forced = [self._num_forced.get(each, 0) for each in rooms]
        if self._auto_disable.is_resting:
            return forced
        chances = [
            [1.0] * count + self._controller.guess_chances(room - count)
            for count, room in zip(forced, rooms.values(), strict=True)
        ]
        return self._controller.choose(chances, len(contexts))

    def _guessed(self, rows: Sequence[DecodeRow], decided: Sequence[Decided]) -> list[tuple[int, int]]:
        """Of each row with drafted tokens, their depth and how many were accepted.

        Tokens that a grammar forces do not count.
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
        """Learns acceptance rates and the time of steps."""
        for depth, num_accepted in guessed:
            for place in range(min(depth, num_accepted + 1)):
                controller.note_guesses([place < num_accepted])
        if guessed:
            self._auto_disable.note_round(sum(num for _, num in guessed) / len(guessed))
        else:
            controller.note_no_guess()
        self._auto_disable.note_step()
        if not times.is_generating:
            return
        is_speculating = any(row.num_drafted for row in rows)
        self._verifying.times.note(
            times.num_rows, times.verify, is_speculating=is_speculating, has_trees=self._num_others > 0
        )
        if not (guessed and self._drafter.has_read_texts):
            # Alternatives beside the path took no forward to draft.
            seconds = times.verify + sum(each.ended - each.started for each in self._draft_steps)
            num_rows = times.num_rows - self._num_others
            controller.times.note(num_rows, seconds, is_speculating=is_speculating)
