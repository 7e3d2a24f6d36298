"""The paged pools: where keys and values of every layer lie.

Knows shapes and slots: slot = block · block_size + offset. Does not know who owns a
block. A spare tail behind the last block absorbs padding rows and lets a view run past
a sequence's end, so neither can touch a real slot. Behind it lie the tree slots.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

NODES_PER_TREE = 128
"""Keys of a draft's tree that there is room for: two words of bits."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    spare_slots: int
    """Slots behind the last block; at least the attention backend's key tile."""
    num_trees: int = 0
    """Trees, each with `NODES_PER_TREE` tree slots."""

    @property
    def num_slots(self) -> int:
        return self.tree_start(self.num_trees)

    def tree_start(self, index: int) -> int:
        """The first of a tree's slots."""
        return self.num_blocks * self.block_size + self.spare_slots + index * NODES_PER_TREE

    @property
    def bytes_per_slot(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_slot * self.block_size


class KVPool:
    """Keys and values, [layers, kv_heads, slots, head_dim] each.

    Slots lie next to each other within a head, so a sequence whose blocks are consecutive
    is read through a view, without a copy.
    """

    def __init__(self, shape: PoolShape) -> None:
        size = (shape.num_layers, shape.num_kv_heads, shape.num_slots, shape.head_dim)
        self.keys: Tensor = _zeros(size, shape)
        self.values: Tensor = _zeros(size, shape)
        self.shape = shape

    @property
    def scratch_slot(self) -> int:
        """Where padding rows write."""
        return self.shape.num_blocks * self.shape.block_size

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copies slots to other slots of every layer; the two may overlap. Both lie on the pool's device."""
        for tensor in (self.keys, self.values):
            tensor.index_copy_(2, destinations, tensor.index_select(2, sources))


def _zeros(size: tuple[int, ...], shape: PoolShape) -> Tensor:
    """Zeroed, not merely allocated: a masked slot still meets a weight of zero, and 0 · NaN is NaN."""
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    # numpy asks the system for zeroed pages, which cost nothing until used; torch would write them all.
    raw = np.zeros(math.prod(size) * shape.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(shape.dtype).view(size)
