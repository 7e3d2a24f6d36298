"""What the engine itself costs: the gap between two verifications with live frames from a draft.

    python bench/host_gap.py [--batch 64] [--lookahead 8] [--steps 400]

A runner that sleeps 10 ms stands for the target, one that sleeps 3 ms for the draft's model; all
else is real: scheduler, mirrors, detokeniser, sockets, a draft service in its own process.
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
from ssd.draft.messages import PROTOCOL_VERSION, Hello
from ssd.draft.service import DraftService
from ssd.draft.supervisor import AddressSource
from ssd.draft.transport import ZmqDraftLink, private_address
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.schedule import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.runtime.runner import RunnerRow
from ssd.sampling import SamplingParams
from tests.tiny import tiny_tokenizer

VOCAB = 400
BLOCK, NUM_BLOCKS = 16, 8192


def next_token(token: int) -> int:
    return (31 * token + 7) % (VOCAB - 2) + 2


class SleepingRunner:
    """Logits of a text that everyone can foretell; a draft errs after every tenth token."""

    def __init__(self, seconds: float, *, errs: bool) -> None:
        self._seconds, self._errs = seconds, errs
        self.gaps: list[float] = []
        self._ended: float | None = None

    def forward(self, rows: Sequence[RunnerRow]) -> Tensor:
        started = time.perf_counter()
        if self._ended is not None:
            self.gaps.append(started - self._ended)
        wanted = [token for row in rows if row.num_logits for token in row.tokens[-row.num_logits :]]
        logits = torch.zeros(len(wanted), VOCAB)
        for row, token in enumerate(wanted):
            following = next_token(token)
            logits[row, (following + 1) % VOCAB if self._errs and token % 10 == 0 else following] = 9.0
            logits[row, following] += 5.0
        time.sleep(max(0.0, self._seconds - (time.perf_counter() - started)))
        self._ended = time.perf_counter()
        return logits


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, "sleeping", VOCAB, name, uuid.uuid4().hex, 4096)


def run_draft(address: str) -> None:
    torch.set_num_threads(1)
    shape = PoolShape(1, 1, 8, NUM_BLOCKS, BLOCK, torch.float32, torch.device("cpu"), 512)
    limits = GrowthLimits(width=64, max_grown=64, max_model_len=4096, prefill_chunk=1024)
    grower = Grower(
        SleepingRunner(0.003, errs=True),
        KVPool(shape),
        BlockManager(NUM_BLOCKS, BLOCK),
        limits,
        growth_policy("value", width=64),
    )
    DraftService(grower, ZmqDraftLink(address), hello("draft")).run(lambda: False)


def run_engine(address: str, batch: int, lookahead: int, steps: int) -> tuple[list[float], EngineCore]:
    torch.set_num_threads(1)
    target = SleepingRunner(0.010, errs=False)
    client = DraftClient(AddressSource(address, hello("target"), timeout=10.0), lookahead=lookahead)
    client.wait_until_ready(10.0)
    limits = SchedulerLimits(batch, 16384, 4096)
    decoder = ParallelDecoder(target, client, lookahead=lookahead)
    core = EngineCore(decoder, BlockManager(NUM_BLOCKS, BLOCK), limits, tiny_tokenizer())
    params = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)
    for index in range(batch):
        prompt = tuple(2 + (index * 5 + place) % (VOCAB - 2) for place in range(32))
        core.add(Request(str(index), None, prompt, params, index, ()))
    for _ in range(steps):
        core.step()
    return target.gaps[steps // 4 :], core


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
        gaps, core = run_engine(address, options.batch, options.lookahead, options.steps)
    finally:
        draft.kill()
    cuts = statistics.quantiles(gaps, n=100)
    stats, frames = core.stats, core.stats.draft.num_frames if core.stats.draft else 0
    shown = "  ".join(f"p{percent} {cuts[percent - 1] * 1e3:.2f}" for percent in (50, 90, 99))
    print(f"gap between verifications, ms: {shown}")
    speculation = stats.speculation
    print(
        f"batch {options.batch}, lookahead {options.lookahead}: {speculation.accepted_per_round:.2f} "
        f"accepted a round, hits {speculation.hit_rate or 0:.2f}, "
        f"{frames / stats.num_steps:.1f} frames a step"
    )


if __name__ == "__main__":
    main()
