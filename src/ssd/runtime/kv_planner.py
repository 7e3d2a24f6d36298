"""Plans the KV cache: the number of blocks and trees for a number of bytes, and the longest text that fits.

Knows settings and shapes. Does not know other uses of memory: see `memory.py`.
"""

import logging
from dataclasses import dataclass

import torch

from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE
from ssd.config import RunnerConfig
from ssd.config.runner import KV_CACHE_BYTES
from ssd.kvcache.pool import NODES_PER_TREE, PoolShape
from ssd.models.config import ModelConfig
from ssd.runtime.memory import MemoryPlan

logger = logging.getLogger(__name__)


def pool_bytes(shape: PoolShape) -> int:
    """Bytes of a pool's blocks and tree slots."""
    num_slots = shape.num_blocks * shape.block_size + shape.num_trees * NODES_PER_TREE
    return shape.bytes_per_slot * num_slots


@dataclass(frozen=True, slots=True)
class KVPlanner:
    config: RunnerConfig
    model: ModelConfig
    dtype: torch.dtype
    device: torch.device

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text; ValueError if the setting exceeds the model's positions."""
        asked, most = self.config.max_model_len, self.model.max_position
        if asked is not None and asked > most:
            raise ValueError(
                f"max_model_len={asked}, but the model's positions end at {most}: use at most that"
            )
        return asked or most

    @property
    def one_block(self) -> PoolShape:
        """A pool of one block, and of one tree if trees are enabled."""
        return self._shape(1, min(1, self.config.num_trees))

    def max_model_len(self, shape: PoolShape) -> int:
        """The setting, or as much as model and pool can hold; ValueError if the pool is too small."""
        num_slots, longest = shape.num_blocks * shape.block_size, self.longest
        if longest <= num_slots:
            return longest
        if self.config.max_model_len is not None:
            raise ValueError(
                f"max_model_len={longest}, but the KV cache holds {num_slots} tokens: "
                "raise kv_cache_bytes or lower max_model_len"
            )
        logger.warning(
            "the KV cache limits sequences to %d of the model's %d tokens: raise kv_cache_bytes for more",
            num_slots,
            longest,
        )
        return num_slots

    def on_host(self) -> PoolShape:
        return self.shape(self.config.kv_cache_bytes or KV_CACHE_BYTES)

    def within(self, plan: MemoryPlan) -> PoolShape:
        """The pool that the settings ask for, or one that fills the GPU; ValueError if it does not fit."""
        asked = self.config.kv_cache_bytes
        shape = self.shape(plan.kv_bytes if asked is None else asked)
        needed = pool_bytes(shape)
        if needed > plan.kv_bytes:
            raise ValueError(
                f"the settings ask for {needed} bytes of KV cache, but the GPU has {plan.kv_bytes} left "
                f"(memory {plan}): lower kv_cache_bytes or num_blocks to that, or max_num_batched_tokens, "
                "or what other programs take of this GPU"
            )
        return shape

    def shape(self, kv_bytes: int) -> PoolShape:
        """As many blocks as the memory allows, but no more than max_num_seqs sequences can fill.

        Trees are allocated first. A draft's trees get at most half of the memory; if that is too little for
        all sequences, some of them wait for a tree.
        """
        config, one = self.config, self._shape(1, 0)
        bytes_per_tree = NODES_PER_TREE * one.bytes_per_slot
        memory_of_trees = kv_bytes // 2 if config.least_trees else self._left_for_trees(kv_bytes, one)
        num_trees = min(config.num_trees, max(config.least_trees, memory_of_trees // bytes_per_tree))
        memory = kv_bytes - num_trees * bytes_per_tree
        longest = config.max_model_len or self.model.max_position
        useful = config.max_num_seqs * -(-longest // config.block_size)
        num_blocks = config.num_blocks or min(memory // one.bytes_per_block, useful)
        if num_blocks < 1:
            raise ValueError(
                f"kv_cache_bytes={kv_bytes} holds no block: give at least "
                f"{one.bytes_per_block + num_trees * bytes_per_tree}"
            )
        return self._shape(num_blocks, num_trees)

    def _left_for_trees(self, kv_bytes: int, one: PoolShape) -> int:
        """Bytes for a target's trees: at most an eighth, and none of what the settings require for texts."""
        config = self.config
        required = config.num_blocks or -(-(config.max_model_len or 0) // config.block_size)
        return max(0, min(kv_bytes // 8, kv_bytes - required * one.bytes_per_block))

    def _shape(self, num_blocks: int, num_trees: int) -> PoolShape:
        model = self.model
        return PoolShape(
            model.num_layers,
            model.num_kv_heads,
            model.head_dim,
            num_blocks,
            self.config.block_size,
            self.dtype,
            self.device,
            spare_slots=DETERMINISTIC_KEY_TILE,
            num_trees=num_trees,
        )
