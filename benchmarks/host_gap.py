"""What the engine itself costs: the gap between two verifications with live frames from a draft.

    python -m benchmarks.host_gap [--batch 64] [--lookahead 8] [--steps 400]

A runner that is done 10 ms after it was called stands for a target on a GPU, one that sleeps 3 ms for the
draft's model (both by a rule: sleeping.py); all else is real: scheduler, mirrors, detokeniser, sockets, a
draft service in its own process.
"""

import multiprocessing
from collections.abc import Sequence

import torch

from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from benchmarks.ruled import BLOCK, NUM_BLOCKS, hello, prompt_of, scheduler_of
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import AddressSource, FixedSources
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.sockets import ZmqDraftSocket
from ssd.draft.server.server import DraftServer
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.schedule import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.processes.sockets import private_address
from ssd.sampling import SamplingParams
from tests.network.sleeping import SleepingDraft, SleepingTarget
from tests.tiny import tiny_tokenizer

FLAGS = {"batch": 64, "lookahead": 8, "steps": 400}


def run_draft(address: str) -> None:
    torch.set_num_threads(1)
    scheduler = scheduler_of(SleepingDraft(0.003), prefill_chunk=1024)
    DraftServer(scheduler, ZmqDraftSocket(address), hello("draft")).run(lambda: False)


def run_engine(
    address: str, batch: int, lookahead: int, steps: int
) -> tuple[SleepingTarget, list[float], EngineCore]:
    """The target with its gaps, of each the seconds spent waiting for the draft, and the engine."""
    torch.set_num_threads(1)
    target = SleepingTarget(0.010)
    source = AddressSource(address, hello("target"), timeout=60.0)
    client = DraftClient(FixedSources(source), lookahead=lookahead)
    speculator = Speculator(client, lookahead=lookahead)
    speculator.start(60.0)
    limits = SchedulerLimits(batch, 16384, 4096)
    decoder = Decoder(target, DraftAhead(speculator))
    core = EngineCore(decoder, BlockManager(NUM_BLOCKS, BLOCK), limits, tiny_tokenizer())
    params = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)
    for index in range(batch):
        core.add(Request(str(index), None, tuple(prompt_of(index)), params, index, ()))
    waits = []
    for _ in range(steps):
        core.step()
        waits.append(decoder.times.wait)
    speculator.close()
    return target, waits, core


def in_words(seconds: Sequence[float]) -> str:
    percents = (50, 90, 99)
    found = zip(percents, percentiles(seconds, *percents), strict=True)
    return "  ".join(f"p{percent} {1e3 * value:.2f}" for percent, value in found)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    address = private_address()
    draft = multiprocessing.get_context("spawn").Process(target=run_draft, args=(address,), daemon=True)
    draft.start()
    target, waits, core = run_engine(address, options.batch, options.lookahead, options.steps)
    draft.kill()
    begun = options.steps // 4
    gaps, works, waits = target.gaps[begun:], target.works[begun:], waits[begun + 1 :]
    print(f"between two verifications, ms: {in_words(gaps)}")
    print(f"without waiting for the draft: {in_words([a - b for a, b in zip(gaps, waits, strict=True)])}")
    print(f"in which this thread computed: {in_words(works)}")
    stats, frames = core.stats, core.stats.draft.num_frames if core.stats.draft else 0
    print(
        f"batch {options.batch}, lookahead {options.lookahead}: "
        f"{stats.speculation.accepted_per_round:.2f} accepted a round, "
        f"hits {stats.speculation.hit_rate or 0:.2f}, {frames / stats.num_steps:.1f} frames a step"
    )


if __name__ == "__main__":
    main()
