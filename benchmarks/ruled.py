"""A rule that stands for both models: what is left to time is the engine's own work.

Knows logits, greetings and a grower; not who asks. Everyone can foretell the text, but a draft errs after
every tenth token.
"""

import uuid
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.attention.rows import Row
from ssd.draft.grower import Grower, GrowthLimits
from ssd.draft.growth import growth_policy
from ssd.draft.messages import PROTOCOL_VERSION, Hello
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.runtime.runner import Runner

VOCAB, BLOCK, NUM_BLOCKS = 400, 16, 8192


def prompt_of(index: int) -> list[int]:
    return [2 + (index * 5 + place) % (VOCAB - 2) for place in range(32)]


def logits_of(rows: Sequence[Row], *, errs: bool) -> Tensor:
    tokens = torch.tensor(
        [token for row in rows if row.num_logits for token in row.tokens[-row.num_logits :]], dtype=torch.long
    )
    following = (31 * tokens + 7) % (VOCAB - 2) + 2
    guessed = torch.where(tokens % 10 == 0, (following + 1) % VOCAB, following) if errs else following
    logits = torch.zeros(len(tokens), VOCAB)
    logits.scatter_(1, guessed.unsqueeze(1), 9.0)
    logits.scatter_add_(1, following.unsqueeze(1), torch.full((len(tokens), 1), 5.0))
    return logits


def outcome(last: int, drafted: Sequence[int]) -> list[int]:
    """What a target decides by the rule, after a token and a path that was drafted."""
    tokens = [(31 * last + 7) % (VOCAB - 2) + 2]
    for guess in drafted:
        if guess != tokens[-1]:
            break
        tokens.append((31 * tokens[-1] + 7) % (VOCAB - 2) + 2)
    return tokens


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, "a rule", VOCAB, name, uuid.uuid4().hex, 4096)


def grower_of(runner: Runner, *, prefill_chunk: int) -> Grower:
    shape = PoolShape(1, 1, 8, NUM_BLOCKS, BLOCK, torch.float32, torch.device("cpu"), 512, 64)
    limits = GrowthLimits(width=64, lookup=4, max_grown=64, max_model_len=4096, prefill_chunk=prefill_chunk)
    blocks = BlockManager(NUM_BLOCKS, BLOCK)
    return Grower(runner, KVPool(shape), blocks, limits, growth_policy("value", width=64))
