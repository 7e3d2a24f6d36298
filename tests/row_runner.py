"""Runners of tests that answer rows by a rule: nothing is written into tensors, nothing comes later."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ssd.attention.inputs import SequenceInput
from ssd.runtime.runner import FinishedStep, InFlightStep

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class RowRunner:
    """A subclass says what the logits of rows are."""

    is_async = False
    num_uncaptured = 0

    def forward(self, rows: Sequence[SequenceInput]) -> "Tensor":
        raise NotImplementedError

    def batch(self, rows: Sequence[SequenceInput]) -> Any:
        return rows

    def launch(self, batch: Any, finish: "Callable[[Tensor], T]") -> InFlightStep[T]:
        return FinishedStep(finish(self.forward(batch)))
