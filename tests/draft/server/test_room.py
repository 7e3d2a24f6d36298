"""A draft whose KV cache is full sends one sequence away, goes on with the others, and takes it back."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, FixedSources
from ssd.draft.protocol.messages import CREDIT, PROTOCOL_VERSION, Hello, Sampling
from ssd.draft.server.server import DraftServer
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import LoadedModel
from tests.draft.tree.real import load, real_scheduler
from tests.e2e.draft_in_memory import PEER, DraftEnd, EngineEnd, Wires
from tests.still_clock import still

BLOCK = 4
HELLO = Hello(PROTOCOL_VERSION, "same", 500, "someone", "one", 200)


@pytest.fixture(scope="module")
def draft(tiny_llama: Path) -> LoadedModel:
    return load(tiny_llama)


class Draft:
    """A source of one line to a service with so many blocks."""

    def __init__(self, draft: LoadedModel, num_blocks: int, clock: Callable[[], float] = still) -> None:
        self.wires = Wires()
        self.blocks = BlockManager(num_blocks, BLOCK)
        scheduler = real_scheduler(draft, self.blocks, clock=clock)
        self.service = DraftServer(scheduler, DraftEnd(self.wires), HELLO)

    name = "a draft"

    def connect(self) -> Connection | None:
        link = EngineEnd(self.wires, lambda: None)
        return Connection(link, HELLO, time.monotonic, timeout=60.0, hello_timeout=60.0)

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


def connected(source: Draft) -> DraftClient:
    client = DraftClient(FixedSources(source), lookahead=4)
    while not client.is_ready:
        client.pool.tend()
        source.service.turn(0.0)
    return client


def rounds(source: Draft, client: DraftClient, count: int) -> int:
    """How many steps the draft took."""
    num_busy = 0
    for _ in range(count):
        num_busy += source.service.turn(0.0)
        source.service.check_integrity()
        client.pool.read()
        client.check_integrity()
    return num_busy


def test_a_full_cache_is_no_deadlock(draft: LoadedModel) -> None:
    torch.manual_seed(0)
    source = Draft(draft, num_blocks=12)
    client = connected(source)
    texts = {f"t{number}": [3 + number] * length for number, length in enumerate((12, 8, 20, 8))}
    for key, text in texts.items():
        client.follow(key, text, len(text), Sampling(seed=1), 100)
    rounds(source, client, 10)
    # The texts alone fill twelve blocks of four, and each knows what may follow.
    assert all(path.tokens for path in client.paths(list(texts), 1))
    client.outcomes([(key, [100]) for key in texts])
    rounds(source, client, 10)
    # None of them could be read on: one had to go, the largest.
    assert client.stats.num_declined == 1
    assert sum(bool(path.tokens) for path in client.paths(list(texts), 4)) == 3
    [declined] = [key for key in texts if not client.paths([key], 1)[0].tokens]
    assert declined == "t2"
    for key in [each for each in texts if each != declined][:2]:
        client.forget(key)
    rounds(source, client, 10)
    assert client.paths([declined], 1)[0].tokens, "there is room again"


def test_a_step_of_the_draft_is_told_once(draft: LoadedModel) -> None:
    source = Draft(draft, num_blocks=12, clock=itertools.count(0.0).__next__)
    client = connected(source)
    client.follow("a", [5] * 12, 12, Sampling(seed=1), 100)
    num_steps = rounds(source, client, 8)
    spans = client.pool.take_step_spans()
    assert 1 < len(spans) == len(set(spans)) <= num_steps


def test_a_draft_that_has_nothing_to_grow_says_so(draft: LoadedModel) -> None:
    """Else it would be taken for one that has stalled, where there is another."""
    source = Draft(draft, num_blocks=40)
    client = connected(source)
    client.follow("a", [5] * 6, 6, Sampling(seed=1), 100)
    rounds(source, client, 8)
    # As if frames were under way of which it has had no word.
    [session] = source.service._peers[PEER].sessions.values()
    session.ledger.sent[session.row] += CREDIT
    client.outcomes([("a", [100])])
    [replica] = client.pool.replicas
    assert replica._unanswered_since is not None
    assert rounds(source, client, 1) == 0
    assert replica._unanswered_since is None
