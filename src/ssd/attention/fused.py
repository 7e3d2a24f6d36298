"""Attention with our kernels, which read keys in place, for texts and trees, on a GPU or in the interpreter.

Shapes are fixed and no value is read on the host, so a step can be captured. `paged.py` is the reference. Has
never run on a GPU.
"""

from dataclasses import dataclass

from torch import Tensor

from ssd.attention.batch import Batch
from ssd.attention.rotation import Rotation
from ssd.kernels.attention import PagedAttention, VisibleKeys
from ssd.kernels.rope import rotate_and_write_kv
from ssd.kernels.tiles import NOT_KNOWN, AttentionShape
from ssd.kvcache.pool import NODES_PER_TREE, KVPool


class FusedBackend:
    def __init__(self, pool: KVPool, num_heads: int, *, deterministic: bool = False) -> None:
        self._pool = pool
        self._num_heads = num_heads
        self._deterministic = deterministic

    def plan(self, batch: Batch) -> "FusedPlan":
        shape = self._pool.shape
        slots, sequences, seen, paths, tables, tree_starts = (
            each.to(shape.device, non_blocking=True)
            for each in (
                *(batch.slots, batch.sequences, batch.seen),
                *(batch.paths, batch.tables, batch.tree_starts),
            )
        )
        num_nodes = NODES_PER_TREE if shape.num_trees else 0
        visible = VisibleKeys(sequences, seen, paths, tables, tree_starts, shape.block_size, num_nodes)
        # A captured step has no spans: it may be replayed with rows of any number of sequences.
        owners = {span.sequence for span in batch.spans}
        attention_shape = AttentionShape(
            batch.num_rows,
            len(owners) + 1 if owners else NOT_KNOWN,
            tables.shape[1] * shape.block_size,
            self._num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.dtype.itemsize,
        )
        attention = PagedAttention(visible, attention_shape, deterministic=self._deterministic)
        return FusedPlan(self._pool, slots, attention)


@dataclass(frozen=True, slots=True)
class FusedPlan:
    _pool: KVPool
    _slots: Tensor
    _attention: PagedAttention

    def attend(self, layer: int, heads: Tensor, values: Tensor, rotation: Rotation) -> Tensor:
        pools = self._pool.keys[layer], self._pool.values[layer]
        queries = rotate_and_write_kv(heads, values, rotation.cos, rotation.sin, *pools, self._slots)
        return self._attention.attend(queries, *pools)
