"""A draft service from its settings: model, blocks, grower and socket put together."""

from dataclasses import dataclass
from pathlib import Path

from ssd.config import DType, EngineConfig, GrowthPolicyName, Precision
from ssd.draft.greeting import greeting
from ssd.draft.grower import Grower, GrowthLimits
from ssd.draft.growth import growth_policy
from ssd.draft.link import DraftLink, Keys, ZmqDraftLink
from ssd.draft.service import DraftService
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import load_draft


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Everything a draft service can be told."""

    model: str
    device: str = "auto"
    dtype: DType = "auto"
    precision: Precision = "auto"
    head: int | None = None
    cores: tuple[int, ...] = ()
    width: int = 12
    children: int = 4
    lookup: int = 4
    growth: GrowthPolicyName = "value"
    kv_cache_bytes: int = 2 << 30
    max_num_seqs: int = 64
    block_size: int = 16

    def __post_init__(self) -> None:
        # The engine's settings know the ranges.
        EngineConfig(
            model=self.model,
            mode="ssd",
            draft=self.model,
            draft_precision=self.precision,
            draft_head=self.head,
            draft_width=self.width,
            draft_children=self.children,
            draft_lookup=self.lookup,
            growth=self.growth,
        )


def open_link(address: str, keys: str | None) -> ZmqDraftLink:
    return ZmqDraftLink(address, Keys(Path(keys)) if keys else None)


def build_service(config: DraftConfig, link: DraftLink) -> DraftService:
    loaded = load_draft(
        EngineConfig(
            model=config.model,
            device=config.device,
            dtype=config.dtype,
            cores=config.cores,
            kv_cache_bytes=config.kv_cache_bytes,
            max_num_seqs=config.max_num_seqs,
            block_size=config.block_size,
        ),
        precision=config.precision,
        head=config.head,
    )
    limits = GrowthLimits(
        width=config.width,
        num_children=config.children,
        lookup=config.lookup,
        max_model_len=loaded.max_model_len,
    )
    blocks = BlockManager(loaded.pool.shape.num_blocks, config.block_size)
    policy = growth_policy(config.growth, width=config.width)
    grower = Grower(loaded.runner, loaded.pool, blocks, limits, policy, head_tokens=loaded.head_tokens)
    hello = greeting(
        loaded.checkpoint.tokenizer(),
        vocab_size=loaded.checkpoint.config.vocab_size,
        name=loaded.checkpoint.path.name,
        max_model_len=loaded.max_model_len,
    )
    return DraftService(grower, link, hello)
