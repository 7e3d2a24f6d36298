"""The runner interface: a batch in, what was made of its logits out, in two phases.

Knows what a forward is given and gives back. Eager, compiled and captured-graph runners
implement it; nothing above it knows which one it talks to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class InFlightStep(Protocol[T_co]):
    """A forward that was launched."""

    def is_done(self) -> bool:
        """Whether collecting would not wait."""
        ...

    def collect(self) -> T_co:
        """What was made of the logits."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep(Generic[T]):
    """The flight of a runner that computes while it launches."""

    result: T

    def is_done(self) -> bool:
        return True

    def collect(self) -> T:
        return self.result


class Runner(Protocol):
    @property
    def is_async(self) -> bool:
        """Whether a forward goes on by itself after its launch: the host has time until it is collected."""
        ...

    @property
    def num_uncaptured(self) -> int:
        """Steps that no captured one held; 0 where none is captured."""
        ...

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        """The rows as tensors; they hold until the next call."""
        ...

    def launch(self, batch: Batch, finish: "Callable[[Tensor], T]") -> InFlightStep[T]:
        """Starts the forward, and what is to be made of its logits.

        `finish` is given float32 logits [wanted rows, vocab_size], in the order of the rows; a draft with a
        restricted head has a column for each of its `head_tokens` instead. Its work is queued behind the
        forward: what it reads on the host waits for that.
        """
        ...


def forward(runner: Runner, rows: Sequence[SequenceInput]) -> "Tensor":
    """Float32 logits of the rows, for whoever has nothing to do until they are there."""
    return runner.launch(runner.batch(rows), lambda logits: logits).collect()
