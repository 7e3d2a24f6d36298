"""The interface of runners: `launch` a batch, then `collect` the result of a function of its logits.

Knows a forward's input and output. The eager runner and the runner of captured graphs implement it.
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
        """Whether `collect` would return at once."""
        ...

    def collect(self) -> T_co:
        """The result of `finish`; waits for it."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedStep(Generic[T]):
    """A step that had ended when `launch` returned."""

    result: T

    def is_done(self) -> bool:
        return True

    def collect(self) -> T:
        return self.result


class Runner(Protocol):
    @property
    def is_async(self) -> bool:
        """Whether `launch` returns while the forward still runs, so that the host can do other work."""
        ...

    @property
    def num_uncaptured(self) -> int:
        """Steps that no captured graph could run; 0 if nothing is captured."""
        ...

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        """The rows as tensors, valid until the next call."""
        ...

    def launch(self, batch: Batch, finish: "Callable[[Tensor], T]") -> InFlightStep[T]:
        """Starts the forward, and `finish` on its logits.

        `finish` gets float32 logits [wanted rows, vocab_size], in the order of the rows; for a draft with a
        restricted head they have a column for each of its `head_tokens`. Its work is queued after the
        forward; if it reads a value on the host, it waits for the forward.
        """
        ...


def forward(runner: Runner, rows: Sequence[SequenceInput]) -> "Tensor":
    """Float32 logits of the rows; waits until they are computed."""
    return runner.launch(runner.batch(rows), lambda logits: logits).collect()
