"""What a prompt would find in the prefix cache, without taking it."""

from collections.abc import Sequence

from ssd.kvcache.block_manager import BlockManager


def num_matched(
    blocks: BlockManager, tokens: Sequence[int], *, num_reusable: int | None = None, cache_key: str = ""
) -> int:
    """Leading tokens that would come from the cache."""
    return len(blocks._match(tokens, num_reusable, cache_key).blocks) * blocks.block_size
