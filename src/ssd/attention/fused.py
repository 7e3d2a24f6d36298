"""Attention by kernels of our own: keys where they lie, for texts and trees, on a GPU or in the interpreter.

Fixed shapes, and no value is read on the host, so a step can be captured. `paged.py` says what must come
out. Never run on a GPU.
"""

from dataclasses import dataclass

from torch import Tensor

from ssd.attention.batch import Batch
from ssd.kernels.attention import PagedAttention, VisibleKeys
from ssd.kernels.kv import write_kv
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
        sight = VisibleKeys(sequences, seen, paths, tables, tree_starts, shape.block_size, num_nodes)
        # A captured step names no sequences: rows of any number of them may come.
        owners = {span.sequence for span in batch.spans}
        demand = AttentionShape(
            batch.num_rows,
            len(owners) + 1 if owners else NOT_KNOWN,
            tables.shape[1] * shape.block_size,
            self._num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.dtype.itemsize,
        )
        return FusedPlan(self._pool, slots, PagedAttention(sight, demand, deterministic=self._deterministic))


@dataclass(frozen=True, slots=True)
class FusedPlan:
    _pool: KVPool
    _slots: Tensor
    _attention: PagedAttention

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        pool_keys, pool_values = self._pool.keys[layer], self._pool.values[layer]
        write_kv(keys, values, pool_keys, pool_values, self._slots)
        return self._attention.attend(queries, pool_keys, pool_values)
