"""A target on a host: the real engine, client and line, with a rule and a sleep for the model.

    python -m tests.network.target tcp://10.77.0.2:7000 --keys FOLDER --verify 0.02 --batch 3

It decodes for ever, checks each token against the rule, and prints its counts ten times a second.
"""

import itertools
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.flags import parser
from benchmarks.ruled import BLOCK, NUM_BLOCKS, hello, outcome, prompt_of
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import sources_at
from ssd.draft.client.replica import PoolStats
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.sockets import Keys
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.schedule import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.sampling import SamplingParams
from tests.network.programs import say
from tests.network.sleeping import SleepingTarget
from tests.tiny import tiny_tokenizer

FLAGS: dict[str, object] = {
    "address:": str,
    "keys": None,
    "verify": 0.02,
    "batch": 3,
    "lookahead": 6,
    "max-tokens": 400,
    "timeout": 2.0,
}
_SAYS_EVERY = 0.1


class Decoding:
    """Requests without end, each as soon as there is a seat for it."""

    def __init__(self, core: EngineCore, batch: int, max_tokens: int) -> None:
        self._core, self._batch = core, batch
        self._params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._numbers = itertools.count()
        self._last: dict[str, int] = {}
        self.num_tokens = self.num_wrong = 0

    def step(self) -> None:
        while len(self._last) < self._batch:
            number = next(self._numbers)
            prompt = tuple(prompt_of(number))
            self._last[str(number)] = prompt[-1]
            self._core.add(Request(str(number), None, prompt, self._params, number, ()))
        told = self._core.step()
        for increment in told.increments:
            for token in increment.token_ids:
                self.num_wrong += [token] != outcome(self._last[increment.request_id], ())
                self._last[increment.request_id] = token
                self.num_tokens += 1
        for finished in told.finished:
            del self._last[finished.request_id]


def build(options: Any, target: SleepingTarget) -> EngineCore:
    proposer = ahead(options)
    limits = SchedulerLimits(options.batch, 16384, 4096)
    decoder = Decoder(target, proposer)
    return EngineCore(decoder, BlockManager(NUM_BLOCKS, BLOCK), limits, tiny_tokenizer())


def ahead(options: Any) -> DraftAhead:
    keys = Keys(Path(options.keys)) if options.keys else None
    sources = sources_at(options.address, hello("target"), timeout=options.timeout, keys=keys)
    client = DraftClient(sources, lookahead=options.lookahead)
    speculator = Speculator(client, lookahead=options.lookahead)
    speculator.start(options.timeout)
    return DraftAhead(speculator)


def counts(core: EngineCore, decoding: Decoding, target: SleepingTarget) -> dict[str, Any]:
    stats, proposer = core.stats, core.decoder.proposer
    speculation, line = stats.speculation, stats.draft or PoolStats()
    replicas = proposer.speculator.client.pool.replicas if isinstance(proposer, DraftAhead) else []
    gaps, target.gaps = target.gaps, []
    return {
        "at": time.monotonic(),
        "tokens": decoding.num_tokens,
        "wrong": decoding.num_wrong,
        "steps": stats.num_steps,
        "rounds": speculation.rounds,
        "hits": speculation.hits,
        "late": speculation.late,
        "unknown": speculation.unknown,
        "unheard": speculation.unheard,
        "accepted": speculation.accepted,
        "waited": stats.wait_seconds,
        "gap": max(gaps, default=0.0),
        "connects": line.num_connects,
        "losses": line.num_losses,
        "resyncs": line.num_resyncs,
        "ready": line.num_ready,
        "moved": line.num_moved,
        "answer": max((each.answer.value for each in replicas), default=0.0),
    }


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    target = SleepingTarget(options.verify)
    core = build(options, target)
    decoding = Decoding(core, options.batch, options.max_tokens)
    due = time.monotonic()
    while True:
        decoding.step()
        if time.monotonic() >= due:
            due = time.monotonic() + _SAYS_EVERY
            say(counts(core, decoding, target))


if __name__ == "__main__":
    main()
