"""The interface of attention backends.

Knows batches. Does not know models or schedulers.
"""

from typing import TYPE_CHECKING, Protocol

from ssd.attention.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from ssd.attention.rotation import Rotation


class AttentionPlan(Protocol):
    """One forward's attention, prepared once and used by every layer."""

    def attend(self, layer: int, heads: "Tensor", values: "Tensor", rotation: "Rotation") -> "Tensor":
        """Rotates `heads`: the queries and, after them, the keys, [rows, heads + kv_heads, head_dim]. Stores
        keys and values, [rows, kv_heads, head_dim], then attends with the queries, and returns
        [rows, heads · head_dim]. Results of padding rows are meaningless."""
        ...


class AttentionBackend(Protocol):
    def plan(self, batch: Batch) -> AttentionPlan: ...
