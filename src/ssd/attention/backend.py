"""The interface of attention backends.

Knows batches. Does not know models or schedulers.
"""

from typing import TYPE_CHECKING, Protocol

from ssd.attention.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


class AttentionPlan(Protocol):
    """One forward's attention, prepared once and used by every layer."""

    def attend(self, layer: int, queries: "Tensor", keys: "Tensor", values: "Tensor") -> "Tensor":
        """Stores keys and values, [rows, kv_heads, head_dim], then attends with queries,
        [rows, heads, head_dim], and returns [rows, heads · head_dim]. Results of padding rows are
        meaningless."""
        ...


class AttentionBackend(Protocol):
    def plan(self, batch: Batch) -> AttentionPlan: ...
