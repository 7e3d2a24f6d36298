"""What attention is asked to do, whatever computes it.

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
        [rows, heads, head_dim], and returns [rows, heads · head_dim]. What is returned for
        padding means nothing."""
        ...


class AttentionBackend(Protocol):
    def plan(self, batch: Batch) -> AttentionPlan: ...
