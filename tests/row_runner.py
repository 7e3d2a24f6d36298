"""Runners of tests that answer rows by a rule: nothing is written into tensors, nothing comes later."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ssd.attention.rows import Row
from ssd.runtime.runner import Flight, Landed

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class RowRunner:
    """A subclass says what the logits of rows are."""

    is_async = False
    num_uncaptured = 0

    def forward(self, rows: Sequence[Row]) -> "Tensor":
        raise NotImplementedError

    def batch(self, rows: Sequence[Row]) -> Any:
        return rows

    def launch(self, batch: Any, finish: "Callable[[Tensor], T]") -> Flight[T]:
        return Landed(finish(self.forward(batch)))
