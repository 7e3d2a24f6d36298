"""Attention with fixed shapes that reads no value on the host: for captured steps, and to check kernels.

Every row gathers all keys that it might see, which is slow but simple. Slots that a row does not see cannot
influence it, not even with NaN.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.attention.batch import WORD, Batch
from ssd.attention.rotation import Rotation
from ssd.kvcache.pool import NODES_PER_TREE, KVPool


class PagedBackend:
    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        device = pool.keys.device
        # Made once: making them in a step would launch more kernels.
        self._offsets = torch.arange(pool.shape.block_size, device=device)
        self._nodes = torch.arange(NODES_PER_TREE, device=device)
        self._bits = torch.arange(WORD, device=device)

    def plan(self, batch: Batch) -> "PagedPlan":
        size, num_rows = self._pool.shape.block_size, batch.num_rows
        paged = (batch.tables.unsqueeze(2) * size + self._offsets).flatten(1)
        nodes = batch.tree_starts.unsqueeze(1) + self._nodes
        slots = torch.cat((paged, nodes), 1).index_select(0, batch.sequences)
        on_path = ((batch.paths.unsqueeze(2) >> self._bits) & 1).view(num_rows, -1)
        indices = torch.arange(paged.shape[1], device=paged.device)
        sees = torch.cat((indices < batch.seen.unsqueeze(1), on_path > 0), 1)
        return PagedPlan(self._pool, batch.slots, slots.flatten(), sees)


@dataclass(frozen=True, slots=True)
class PagedPlan:
    _pool: KVPool
    _own_slots: Tensor
    _slots: Tensor
    """Slots of the keys that each row might see, row after row."""
    _sees: Tensor
    """[rows, keys]."""

    def attend(self, layer: int, heads: Tensor, values: Tensor, rotation: Rotation) -> Tensor:
        pools = self._pool.keys[layer], self._pool.values[layer]
        num_kv_heads, head_dim = values.shape[1:]
        rotated = rotation.apply(heads)
        queries, keys = rotated[:, :-num_kv_heads], rotated[:, -num_kv_heads:]
        for pool, fresh in zip(pools, (keys, values), strict=True):
            pool.index_copy_(1, self._own_slots, fresh.transpose(0, 1))
        num_rows, num_keys = self._sees.shape
        hidden = ~self._sees.view(num_rows, 1, num_keys, 1)
        # Masking the scores is not enough: a weight of 0 times NaN is NaN.
        known, values_known = (
            pool.index_select(1, self._slots)
            .view(num_kv_heads, num_rows, num_keys, head_dim)
            .transpose(0, 1)
            .masked_fill(hidden, 0.0)
            for pool in pools
        )
        grouped = queries.view(num_rows, num_kv_heads, -1, head_dim)
        mask = self._sees.view(num_rows, 1, 1, num_keys)
        return F.scaled_dot_product_attention(grouped, known, values_known, attn_mask=mask).flatten(1)
