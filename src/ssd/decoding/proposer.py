"""The interface of proposers, which draft the tokens that a step verifies. The base class drafts none.

A proposer knows sequences and the outcomes of its proposals. It does not know the target's runner.
"""

from collections.abc import Callable, Mapping, Sequence

from ssd.decoding.rows import Decided, DecodeRow, DraftContext, DraftStep, Speculation, StepTimes
from ssd.draft.client.replica import PoolStats
from ssd.draft.client.speculator import Proposed, Round
from ssd.sampling.constraint import GrammarState

ContextOf = Callable[[int], DraftContext]
"""The context of a sequence by its id, for proposers that need it."""
GrammarStates = Mapping[int, GrammarState]
"""Grammar states at the ends of sequences that have a grammar, by sequence id."""
Rounds = Sequence[Round | None]
"""The cause and source of each row's round; None: unknown."""


class Proposer:
    """Drafts nothing: mode `ar`. With any other proposer the decided tokens must be the same."""

    is_drafting = False
    """Whether `propose` ever returns tokens."""
    takes_turns = False
    """It runs forwards on the host before the target's: outputs must be delivered before those."""

    @property
    def proposed(self) -> Proposed:
        """Waiting time and hits of the latest proposals."""
        return Proposed()

    @property
    def draft_stats(self) -> PoolStats | None:
        """Statistics of the pool of drafts; None: there is none."""
        return None

    def begin(self, context: DraftContext) -> None:
        """Called when the sequence's prompt is about to be computed, so that a draft can compute it too."""

    def propose(
        self, seq_ids: Sequence[int], context_of: ContextOf, states: GrammarStates
    ) -> list[Speculation]:
        """Drafted tokens for each sequence, possibly none.

        They may violate the grammar: the engine cuts what it forbids.
        """
        return [Speculation()] * len(seq_ids)

    def take_in(self, is_done: Callable[[], bool]) -> None:
        """Reads a draft's messages until the forward is done."""

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided], times: StepTimes) -> Rounds:
        """Takes in the outcomes of a step; returns the cause and source of each row's round."""
        return [None] * len(rows)

    def forget(self, seq_id: int) -> None:
        """Called when the sequence has ended or was preempted: drops its state."""

    def draft_steps(self) -> list[DraftStep]:
        """The draft's steps since the last call."""
        return []

    def close(self) -> None:
        """Called when the engine ends."""
