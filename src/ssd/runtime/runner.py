"""The runner interface: rows of sequences in, logits out.

Knows what a forward is given and gives back. Eager, compiled and captured-graph runners
implement it; nothing above it knows which one it talks to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ssd.attention.backend import Branches

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RunnerRow:
    """One sequence's share of a forward."""

    tokens: Sequence[int]
    start: int
    """Position of the first token."""
    blocks: Sequence[int]
    num_logits: int
    """Logits are wanted for the last so many tokens."""
    generated: bool
    """Generated tokens, as opposed to prompt tokens: deterministic mode tiles them differently."""
    branches: Branches | None = None
    """Given: the tokens are nodes of a tree, and `start` is the first one's slot, not its position."""

    @property
    def positions(self) -> Sequence[int]:
        if self.branches is not None:
            return self.branches.positions
        return range(self.start, self.start + len(self.tokens))


class Runner(Protocol):
    def forward(self, rows: Sequence[RunnerRow]) -> "Tensor":
        """Float32 logits, [sum of num_logits, vocab_size], in the order of the rows.

        A draft with a restricted head has a column for each of its `head_tokens` instead.
        """
        ...


@runtime_checkable
class AsyncRunner(Runner, Protocol):
    """A runner whose forward goes on by itself after it has returned: the host has time until it is done."""

    def is_done(self) -> bool:
        """Whether the logits of the latest forward can be read without waiting."""
        ...
