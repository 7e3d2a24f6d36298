"""From a configuration to a loaded model with its runner and KV pool.

Knows the order in which these are made and how much memory the pool may take.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd.attention.choice import eager_backend
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE
from ssd.config import Precision, RunnerConfig
from ssd.kvcache.pool import NODES_PER_TREE, KVPool, PoolShape
from ssd.models.checkpoint import Checkpoint, open_checkpoint
from ssd.models.config import ModelConfig
from ssd.models.decoder import DenseDecoder
from ssd.models.head_tokens import frequent_tokens
from ssd.models.linear import resolve_precision
from ssd.models.parallel import Shard
from ssd.models.weights import ProgressSource, ShowProgress
from ssd.runtime.cores import pin_to_cores
from ssd.runtime.eager import EagerRunner
from ssd.runtime.host import resolve_device, resolve_dtype
from ssd.runtime.huge_pages import request_huge_pages
from ssd.runtime.layout import Tiling

if TYPE_CHECKING:
    from ssd.runtime.ranks.group import Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    checkpoint: Checkpoint
    runner: EagerRunner
    pool: KVPool
    max_model_len: int

    @property
    def head_tokens(self) -> Tensor | None:
        """The tokens that the columns of logits stand for; None: the whole vocabulary."""
        return self.runner.head_tokens


def load_model(
    config: RunnerConfig,
    *,
    show_progress: ShowProgress = False,
    head_tokens: Sequence[int] | None = None,
    ranks: "Ranks | None" = None,
) -> LoadedModel:
    """The model that `config` names; `head_tokens` are those that have logits, instead of frequent ones.

    `ranks`: this process has a share of it, and if it leads, the others follow what is computed here.
    """
    if config.cores:
        pin_to_cores(config.cores)
    device = resolve_device(config.device)
    checkpoint = open_checkpoint(config.model)
    dtype = resolve_dtype(config.dtype, device, checkpoint.config.dtype)
    shard = Shard() if ranks is None else ranks.shard
    shape = _pool_shape(config, _share_of(checkpoint.config, shard), dtype, device)
    max_model_len = _max_model_len(config, checkpoint.config, shape)
    model = _load_decoder(
        checkpoint,
        max_model_len,
        dtype,
        device,
        precision=config.precision,
        head_tokens=_frequent(checkpoint, config.head) if head_tokens is None else head_tokens,
        show_progress=show_progress,
        ranks=ranks,
    )
    if device.type == "cpu":
        request_huge_pages()
    else:
        _try_kernels(shape, checkpoint.config, deterministic=config.deterministic)
    num_heads = checkpoint.config.num_heads // shard.world_size
    pool = KVPool(shape)
    attention = eager_backend(pool, num_heads, deterministic=config.deterministic)
    tiling = Tiling(config.decode_tile, config.prefill_tile) if config.deterministic else None
    if ranks is None or not ranks.leads:
        return LoadedModel(
            checkpoint, EagerRunner(model, attention, pool, tiling=tiling), pool, max_model_len
        )
    from ssd.runtime.ranks.leading import Announcer, LeadingPool

    runner = EagerRunner(model, attention, pool, tiling=tiling, announce=Announcer(ranks))
    return LoadedModel(checkpoint, runner, LeadingPool(pool, ranks), max_model_len)


def _share_of(model: ModelConfig, shard: Shard) -> ModelConfig:
    """As far as a pool looks: keys of this rank's heads."""
    return replace(model, num_kv_heads=shard.share(model.num_kv_heads, "key-value heads"))


def _try_kernels(shape: PoolShape, model: ModelConfig, *, deterministic: bool) -> None:
    """What fails on this device is torch's from here on, and the log says so."""
    # Not on a CPU: Triton takes long to import.
    from ssd.kernels.language import can_launch
    from ssd.runtime.kernel_checks import leave_failing_kernels_to_torch, scenes_of

    if can_launch(shape.device):
        scenes = scenes_of(shape, model.num_heads, model.vocab_size, deterministic=deterministic)
        leave_failing_kernels_to_torch(shape.device, scenes)


def _frequent(checkpoint: Checkpoint, head: int | None) -> Sequence[int] | None:
    if head is None:
        return None
    return frequent_tokens(checkpoint.tokenizer(), checkpoint.config.vocab_size, head)


def _load_decoder(
    checkpoint: Checkpoint,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    precision: Precision,
    head_tokens: Sequence[int] | None,
    show_progress: ShowProgress,
    ranks: "Ranks | None",
) -> DenseDecoder:
    precision = resolve_precision(precision, device, dtype)
    started = time.perf_counter()
    source = ProgressSource(checkpoint.weights(), f"loading {checkpoint.name}", show=show_progress)
    try:
        model = DenseDecoder(
            checkpoint.config,
            source,
            num_positions=num_positions,
            dtype=dtype,
            device=device,
            precision=precision,
            head_tokens=head_tokens,
            shard=None if ranks is None else ranks.shard,
            collective=ranks,
        )
    finally:
        source.close()
    format_name = "int8" if precision == "int8" else str(dtype).removeprefix("torch.")
    seconds = time.perf_counter() - started
    logger.info("loaded %s as %s on %s in %.1f s", checkpoint.name, format_name, device, seconds)
    return model


def _max_model_len(config: RunnerConfig, model: ModelConfig, shape: PoolShape) -> int:
    """What was asked for, if model and pool can hold it; otherwise as much as both can."""
    num_slots = shape.num_blocks * shape.block_size
    if config.max_model_len is None:
        if num_slots < model.max_position:
            logger.warning(
                "the KV cache limits sequences to %d of the model's %d tokens: raise kv_cache_bytes for more",
                num_slots,
                model.max_position,
            )
        return min(model.max_position, num_slots)
    if config.max_model_len > model.max_position:
        raise ValueError(
            f"max_model_len={config.max_model_len}, but the model's positions end at {model.max_position}: "
            "use at most that"
        )
    if config.max_model_len > num_slots:
        raise ValueError(
            f"max_model_len={config.max_model_len}, but the KV cache holds {num_slots} tokens: "
            "raise kv_cache_bytes or lower max_model_len"
        )
    return config.max_model_len


def _pool_shape(
    config: RunnerConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> PoolShape:
    """As many blocks as the memory allows, but no more than the sequences could ever fill.

    Trees come first, but have half of the memory at most: the others' sequences then wait for one.
    """

    def shape(num_blocks: int, num_trees: int) -> PoolShape:
        return PoolShape(
            model.num_layers,
            model.num_kv_heads,
            model.head_dim,
            num_blocks,
            config.block_size,
            dtype,
            device,
            spare_slots=DETERMINISTIC_KEY_TILE,
            num_trees=num_trees,
        )

    one = shape(1, 0)
    bytes_per_tree = NODES_PER_TREE * one.bytes_per_slot
    num_trees = min(config.num_trees, max(1, config.kv_cache_bytes // 2 // bytes_per_tree))
    memory = config.kv_cache_bytes - num_trees * bytes_per_tree
    longest = config.max_model_len or model.max_position
    useful = config.max_num_seqs * -(-longest // config.block_size)
    num_blocks = config.num_blocks or min(memory // one.bytes_per_block, useful)
    if num_blocks < 1:
        raise ValueError(
            f"kv_cache_bytes={config.kv_cache_bytes} holds no block: give at least "
            f"{one.bytes_per_block + num_trees * bytes_per_tree}"
        )
    return shape(num_blocks, num_trees)
