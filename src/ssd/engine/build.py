"""An engine from a configuration: model, blocks, decoder and core put together."""

import random
from dataclasses import dataclass

from ssd.config import EngineConfig
from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.engine.core import EngineCore
from ssd.engine.prompts import RequestFactory
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import load_model


@dataclass(frozen=True, slots=True)
class Engine:
    core: EngineCore
    requests: RequestFactory
    config: EngineConfig
    max_model_len: int


def build_engine(config: EngineConfig, *, show_progress: bool = False) -> Engine:
    loaded = load_model(config, show_progress=show_progress)
    tokenizer = loaded.checkpoint.tokenizer()
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=loaded.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        # There the bits of a token's keys depend on whether it was prompt or generated.
        cache_generated=not config.deterministic,
    )
    blocks = BlockManager(
        loaded.pool.shape.num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    core = EngineCore(AutoregressiveDecoder(loaded.runner), blocks, limits, tokenizer)
    seeds = random.SystemRandom() if config.seed is None else random.Random(config.seed)
    factory = RequestFactory(
        tokenizer, loaded.checkpoint.end_ids(), loaded.checkpoint.config.vocab_size, seeds
    )
    return Engine(core, factory, config, loaded.max_model_len)
