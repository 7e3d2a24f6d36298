"""E2: a draft whose KV cache is full sends one sequence away, goes on with the others, and takes it back."""

import time
from pathlib import Path

import pytest
import torch

from ssd.draft.client import DraftClient
from ssd.draft.connection import Connection
from ssd.draft.grower import Grower, GrowthLimits
from ssd.draft.growth import growth_policy
from ssd.draft.messages import PROTOCOL_VERSION, Hello, Sampling
from ssd.draft.service import DraftService
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import LoadedModel
from tests.draft.test_grower import load
from tests.e2e.draft_in_memory import DraftEnd, EngineEnd, Wires

BLOCK = 4
HELLO = Hello(PROTOCOL_VERSION, "same", 500, "someone", "one", 200)


@pytest.fixture(scope="module")
def draft(tiny_llama: Path) -> LoadedModel:
    return load(tiny_llama)


class Draft:
    """A source of one line to a service with so many blocks."""

    def __init__(self, draft: LoadedModel, num_blocks: int) -> None:
        self._wires = Wires()
        limits = GrowthLimits(width=6, num_children=3, max_grown=20, prefill_chunk=16, max_model_len=200)
        self.blocks = BlockManager(num_blocks, BLOCK)
        policy = growth_policy("value", width=limits.width)
        grower = Grower(draft.runner, draft.pool, self.blocks, limits, policy)
        self.service = DraftService(grower, DraftEnd(self._wires), HELLO)

    def connect(self) -> Connection | None:
        link = EngineEnd(self._wires, lambda: None)
        return Connection(link, HELLO, time.monotonic, timeout=60.0, greeting_timeout=60.0)

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


def rounds(source: Draft, client: DraftClient, count: int) -> int:
    """How many steps the draft took."""
    num_busy = 0
    for _ in range(count):
        num_busy += source.service.turn(0.0)
        source.service.check_integrity()
        client.line.read()
        client.check_integrity()
    return num_busy


def test_e2_a_full_cache_is_no_deadlock(draft: LoadedModel) -> None:
    torch.manual_seed(0)
    source = Draft(draft, num_blocks=12)
    client = DraftClient(source, lookahead=4)
    while not client.is_ready:
        client.line.tend()
        source.service.turn(0.0)
    texts = {f"t{number}": [3 + number] * 12 for number in range(4)}
    for key, text in texts.items():
        client.follow(key, text, len(text), Sampling(seed=1), 100)
    rounds(source, client, 10)
    # The texts alone fill twelve blocks of four, and each knows what may follow.
    assert all(path.tokens for path in client.paths(list(texts), 1))
    client.outcomes([(key, [100]) for key in texts])
    rounds(source, client, 10)
    # None of them could be read on: one had to go.
    assert client.stats.num_declined == 1
    assert sum(bool(path.tokens) for path in client.paths(list(texts), 4)) == 3
    declined = next(key for key in texts if not client.paths([key], 1)[0].tokens)
    for key in [each for each in texts if each != declined][:2]:
        client.forget(key)
    rounds(source, client, 10)
    assert client.paths([declined], 1)[0].tokens, "there is room again"


def test_a_text_that_is_larger_than_the_cache_goes_and_stays_away(draft: LoadedModel) -> None:
    source = Draft(draft, num_blocks=12)
    client = DraftClient(source, lookahead=4)
    while not client.is_ready:
        client.line.tend()
        source.service.turn(0.0)
    client.follow("long", [5] * 60, 60, Sampling(seed=1), 100)
    client.follow("short", [5] * 6, 6, Sampling(seed=1), 100)
    rounds(source, client, 40)
    assert client.paths(["short"], 1)[0].tokens
    assert not client.paths(["long"], 1)[0].tokens
