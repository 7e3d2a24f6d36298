"""An engine from a configuration: model, blocks, decoder and core put together."""

import random
from dataclasses import dataclass, replace
from typing import Any

from ssd.config import EngineConfig
from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.decoding.decoder import Decoder
from ssd.decoding.drafter import Drafter, DraftLimits, RatioDrafting
from ssd.decoding.speculative import SpeculativeDecoder
from ssd.engine.core import EngineCore
from ssd.engine.prompts import RequestFactory
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.models.checkpoint import Checkpoint
from ssd.runtime.loading import LoadedModel, load_model


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
    decoder = _decoder(config, loaded, show_progress=show_progress)
    core = EngineCore(decoder, blocks, limits, tokenizer, acceptance=config.acceptance)
    seeds = random.SystemRandom() if config.seed is None else random.Random(config.seed)
    factory = RequestFactory(
        tokenizer, loaded.checkpoint.end_ids(tokenizer), loaded.checkpoint.config.vocab_size, seeds
    )
    return Engine(core, factory, config, loaded.max_model_len)


def _decoder(config: EngineConfig, target: LoadedModel, *, show_progress: bool) -> Decoder:
    if config.draft is None:
        return AutoregressiveDecoder(target.runner)
    # Its guesses are only ever checked, so the draft has no need of deterministic tiles.
    draft_config = replace(
        config,
        model=config.draft,
        mode="ar",
        draft=None,
        deterministic=False,
        max_model_len=None,
        acceptance="coupled",
        saguaro=1.0,
    )
    draft = load_model(draft_config, show_progress=show_progress)
    vocab_size = common_vocabulary(target.checkpoint, draft.checkpoint)
    limits = DraftLimits(config.lookahead, draft.max_model_len, config.max_num_batched_tokens, vocab_size)
    blocks = BlockManager(draft.pool.shape.num_blocks, config.block_size, enable_prefix_caching=False)
    ratio = RatioDrafting(config.saguaro) if config.acceptance == "ratio" else None
    return SpeculativeDecoder(target.runner, Drafter(draft.runner, blocks, limits, ratio))


def common_vocabulary(target: Checkpoint, draft: Checkpoint) -> int:
    """Tokens both models know; ValueError if they mean different things by one of them.

    Models of one family often pad their embeddings differently, and one may name special
    tokens that are padding to the other: neither is a conflict. What lies beyond the
    smaller table is never guessed.
    """
    ours, theirs = (_vocabulary(each.tokenizer()) for each in (target, draft))
    vocab_size = min(target.config.vocab_size, draft.config.vocab_size)
    differing = sorted(token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token])
    if differing:
        token = differing[0]
        raise ValueError(
            f"{draft.path.name} cannot draft for {target.path.name}: their tokenizers differ (token "
            f"{token} is {theirs[token]!r} and {ours[token]!r}); use a draft of the same family"
        )
    return vocab_size


def _vocabulary(tokenizer: Any) -> dict[int, str]:
    return {token: text for text, token in tokenizer.get_vocab().items()}
