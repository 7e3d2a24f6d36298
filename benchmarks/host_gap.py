"""What the engine itself costs: the gap between two verifications with live frames from a draft.

    python -m benchmarks.host_gap [--batch 64] [--lookahead 8] [--steps 400]

A runner that is done 10 ms after it was called stands for a target on a GPU, one that sleeps 3 ms for
the draft's model; all else is real: scheduler, mirrors, detokeniser, sockets, a draft service in its
own process.
"""

import argparse
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.decoding.parallel import ParallelDecoder
from ssd.draft.client import DraftClient
from ssd.draft.grower import Grower, GrowthLimits
from ssd.draft.growth import growth_policy
from ssd.draft.link import ZmqDraftLink
from ssd.draft.messages import PROTOCOL_VERSION, Hello
from ssd.draft.policy import Policy
from ssd.draft.service import DraftService
from ssd.draft.sources import AddressSource
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.schedule import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.processes.sockets import private_address
from ssd.runtime.runner import RunnerRow
from ssd.sampling import SamplingParams
from tests.tiny import tiny_tokenizer

VOCAB = 400
BLOCK, NUM_BLOCKS = 16, 8192


def logits_of(rows: Sequence[RunnerRow], *, errs: bool) -> Tensor:
    """A text that everyone can foretell; a draft errs after every tenth token."""
    tokens = torch.tensor(
        [token for row in rows if row.num_logits for token in row.tokens[-row.num_logits :]], dtype=torch.long
    )
    following = (31 * tokens + 7) % (VOCAB - 2) + 2
    guessed = torch.where(tokens % 10 == 0, (following + 1) % VOCAB, following) if errs else following
    logits = torch.zeros(len(tokens), VOCAB)
    logits.scatter_(1, guessed.unsqueeze(1), 9.0)
    logits.scatter_add_(1, following.unsqueeze(1), torch.full((len(tokens), 1), 5.0))
    return logits


class SleepingDraft:
    """A forward of 3 ms."""

    def forward(self, rows: Sequence[RunnerRow]) -> Tensor:
        started = time.perf_counter()
        logits = logits_of(rows, errs=True)
        time.sleep(max(0.0, 0.003 - (time.perf_counter() - started)))
        return logits


class SleepingTarget:
    """A forward of 10 ms that goes on by itself, as on a GPU; keeps the time from its end to the next one."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self._ends = float("inf")

    def forward(self, rows: Sequence[RunnerRow]) -> Tensor:
        started = time.perf_counter()
        if self._ends < started:
            self.gaps.append(started - self._ends)
        logits = logits_of(rows, errs=False)
        self._ends = started + 0.010
        return logits

    def is_done(self) -> bool:
        return time.perf_counter() >= self._ends


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, "sleeping", VOCAB, name, uuid.uuid4().hex, 4096)


def run_draft(address: str) -> None:
    torch.set_num_threads(1)
    shape = PoolShape(1, 1, 8, NUM_BLOCKS, BLOCK, torch.float32, torch.device("cpu"), 512)
    limits = GrowthLimits(width=64, lookup=4, max_grown=64, max_model_len=4096, prefill_chunk=1024)
    grower = Grower(
        SleepingDraft(),
        KVPool(shape),
        BlockManager(NUM_BLOCKS, BLOCK),
        limits,
        growth_policy("value", width=64),
    )
    DraftService(grower, ZmqDraftLink(address), hello("draft")).run(lambda: False)


def run_engine(
    address: str, batch: int, lookahead: int, steps: int
) -> tuple[list[float], list[float], EngineCore]:
    """Seconds between two verifications, those spent waiting for the draft among them, and the engine."""
    torch.set_num_threads(1)
    target = SleepingTarget()
    client = DraftClient(AddressSource(address, hello("target"), timeout=60.0), lookahead=lookahead)
    policy = Policy(client, lookahead=lookahead)
    policy.start(60.0)
    limits = SchedulerLimits(batch, 16384, 4096)
    decoder = ParallelDecoder(target, policy)
    core = EngineCore(decoder, BlockManager(NUM_BLOCKS, BLOCK), limits, tiny_tokenizer())
    params = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)
    for index in range(batch):
        prompt = tuple(2 + (index * 5 + place) % (VOCAB - 2) for place in range(32))
        core.add(Request(str(index), None, prompt, params, index, ()))
    waits = []
    for _ in range(steps):
        core.step()
        waits.append(decoder.times.wait)
    policy.close()
    return target.gaps[steps // 4 :], waits[steps // 4 + 1 :], core


def quantiles(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return "  ".join(f"p{percent} {cuts[percent - 1] * 1e3:.2f}" for percent in (50, 90, 99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lookahead", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--draft", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.draft:
        run_draft(options.draft)
        return
    address = private_address()
    draft = subprocess.Popen([sys.executable, __file__, "--draft", address])
    try:
        gaps, waits, core = run_engine(address, options.batch, options.lookahead, options.steps)
    finally:
        draft.kill()
    host = [gap - wait for gap, wait in zip(gaps, waits, strict=True)]
    stats, frames = core.stats, core.stats.draft.num_frames if core.stats.draft else 0
    print(f"between two verifications, ms: {quantiles(gaps)}")
    print(f"without waiting for the draft: {quantiles(host)}")
    speculation = stats.speculation
    print(
        f"batch {options.batch}, lookahead {options.lookahead}: {speculation.accepted_per_round:.2f} "
        f"accepted a round, hits {speculation.hit_rate or 0:.2f}, "
        f"{frames / stats.num_steps:.1f} frames a step"
    )


if __name__ == "__main__":
    main()
