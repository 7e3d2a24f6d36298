"""Who guesses the tokens that a step verifies: what the engine asks, and the answers where nobody guesses.

A proposer knows sequences and what became of its guesses. It does not know the target's runner.
"""

from collections.abc import Callable, Mapping, Sequence

from ssd.decoding.rows import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.draft.client.pool import PoolStats
from ssd.draft.client.speculator import Proposed, Round
from ssd.sampling.constraint import Place

ContextOf = Callable[[int], DraftContext]
"""What there is to know of a sequence, for whoever needs more than its tokens so far."""
Places = Mapping[int, Place]
"""Where the texts stand that must keep to a grammar: at their ends."""
Rounds = Sequence[Round | None]
"""How the round of each row came about, where that is known."""


class Proposer:
    """Guesses nothing: mode `ar`. Those that guess must lead to the tokens that this one leads to."""

    is_drafting = False
    """Whether it is worth asking."""
    takes_turns = False
    """Its forwards come before the target's next one: text would wait for all of them."""

    @property
    def proposed(self) -> Proposed:
        """How the latest proposals came about."""
        return Proposed()

    @property
    def line_stats(self) -> PoolStats | None:
        """The line to a draft elsewhere, where there is one."""
        return None

    def begin(self, context: DraftContext) -> None:
        """The sequence's prompt is about to be computed: a draft can read it at the same time."""

    def propose(self, seq_ids: Sequence[int], context_of: ContextOf, places: Places) -> list[Speculation]:
        """Tokens guessed to come next in each sequence; none where there is no guess.

        A guess need not keep to its grammar: what it forbids is cut.
        """
        return [Speculation()] * len(seq_ids)

    def take_in(self, is_done: Callable[[], bool]) -> None:
        """While a forward computes: what a draft says, until it is done."""

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided], times: StepTimes) -> Rounds:
        """What became of the guesses; how each row's round came about."""
        return [None] * len(rows)

    def forget(self, seq_id: int) -> None:
        """The sequence has ended or given way: whatever is kept for it can go."""

    def draft_steps(self) -> list[DraftStep]:
        """What the draft computed since the last call."""
        return []

    def close(self) -> None:
        """The engine ends."""
