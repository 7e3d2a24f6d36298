"""The paged pools of keys and values of all layers.

Knows shapes and slots: slot = block · block_size + offset. Does not know which sequence owns a block. Spare
slots follow the last block: padding rows write there, and views may extend past a sequence's end. The tree
slots follow the spare ones.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

NODES_PER_TREE = 128
"""Slots of one tree: as many as two words have bits."""


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
    """Slots after the last block; at least the attention backend's key tile."""
    num_trees: int = 0
    """Number of trees, each with `NODES_PER_TREE` slots."""

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

    Slots of a head are adjacent, so a sequence with consecutive blocks can be read as a view.
    """

    def __init__(self, shape: PoolShape) -> None:
        size = (shape.num_layers, shape.num_kv_heads, shape.num_slots, shape.head_dim)
        self.keys: Tensor = _zeros(size, shape)
        self.values: Tensor = _zeros(size, shape)
        self.shape = shape

    @property
    def scratch_slot(self) -> int:
        """The slot that padding rows write to."""
        return self.shape.num_blocks * self.shape.block_size

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copies slots to other slots in every layer; the two may overlap. Both are on the pool's device."""
        for tensor in (self.keys, self.values):
            tensor.index_copy_(2, destinations, tensor.index_select(2, sources))


def _zeros(size: tuple[int, ...], shape: PoolShape) -> Tensor:
    """Zeros, because masked slots are multiplied by zero, and 0 · NaN is NaN."""
    if shape.device.type != "cpu":
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
    # numpy asks the system for zeroed pages, which take no time until used; torch would write all of them.
    raw = np.zeros(math.prod(size) * shape.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(shape.dtype).view(size)
