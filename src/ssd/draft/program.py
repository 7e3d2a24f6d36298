"""A draft service from its settings: model, blocks, grower and socket put together."""

from pathlib import Path

from ssd.config import DraftConfig
from ssd.draft.grower import Grower, GrowthLimits
from ssd.draft.growth import growth_policy
from ssd.draft.link import DraftLink, Keys, ZmqDraftLink
from ssd.draft.messages import Hello
from ssd.draft.service import DraftService
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import load_model


def open_link(address: str, keys: str | None) -> ZmqDraftLink:
    return ZmqDraftLink(address, Keys(Path(keys)) if keys else None)


def build_service(config: DraftConfig, link: DraftLink) -> DraftService:
    loaded = load_model(config.runner)
    limits = GrowthLimits(
        width=config.width,
        num_children=config.children,
        lookup=config.lookup,
        max_model_len=loaded.max_model_len,
    )
    blocks = BlockManager(loaded.pool.shape.num_blocks, loaded.pool.shape.block_size)
    policy = growth_policy(config.growth, width=config.width)
    grower = Grower(loaded.runner, loaded.pool, blocks, limits, policy, head_tokens=loaded.head_tokens)
    hello = Hello.of(
        loaded.checkpoint.tokenizer(),
        vocab_size=loaded.checkpoint.config.vocab_size,
        name=loaded.checkpoint.path.name,
        max_model_len=loaded.max_model_len,
    )
    return DraftService(grower, link, hello)
