"""What speculation costs a host that verifies: seconds of settling and proposing, with live frames.

    python -m benchmarks.client_work [--batch 1 16 64] [--lookahead 8] [--rounds 300]

Draft service, forest, sessions, protocol and policy are real; a rule stands for both models, and queues for
sockets, so that only the client's own work is timed. The draft takes some steps while the target "computes",
which the host takes in there, and one more before proposals are asked for. p50/p99 in ms; `cpu` is the
process's time of settle, propose and taking in, in ms a round.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.host_gap import VOCAB, hello, logits_of
from ssd.draft.client import DraftClient
from ssd.draft.contact import Contact
from ssd.draft.grower import Grower, GrowthLimits
from ssd.draft.growth import growth_policy
from ssd.draft.messages import Sampling
from ssd.draft.policy import Policy, Verified
from ssd.draft.service import DraftService
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.runtime.runner import RunnerRow
from tests.e2e.draft_in_memory import DraftEnd, EngineEnd, Wires

BLOCK, NUM_BLOCKS = 16, 8192
WARM_UP = 20


class RuledDraft:
    def forward(self, rows: Sequence[RunnerRow]) -> Tensor:
        return logits_of(rows, errs=True)


class DraftHere:
    """A draft service in this process, and lines to it."""

    def __init__(self) -> None:
        self._wires = Wires()
        shape = PoolShape(1, 1, 8, NUM_BLOCKS, BLOCK, torch.float32, torch.device("cpu"), 512)
        limits = GrowthLimits(width=64, lookup=4, max_grown=64, max_model_len=4096, prefill_chunk=4096)
        grower = Grower(
            RuledDraft(),
            KVPool(shape),
            BlockManager(NUM_BLOCKS, BLOCK),
            limits,
            growth_policy("value", width=64),
        )
        self._service = DraftService(grower, DraftEnd(self._wires), hello("draft"))

    def make_contact(self) -> Contact | None:
        link = EngineEnd(self._wires, lambda: None)
        return Contact(link, hello("target"), time.monotonic, timeout=60.0, greeting_timeout=60.0)

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass

    def turn(self, count: int) -> None:
        for _ in range(count):
            self._service.turn(0.0)


class Stopwatch:
    """Seconds by kind, and the process's own time of all of them."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"settle": [], "propose": [], "take in": []}
        self.cpu = 0.0
        self._started = self._cpu_started = 0.0

    def start(self) -> None:
        self._cpu_started, self._started = time.process_time(), time.perf_counter()

    def stop(self, kind: str) -> None:
        self.seconds[kind].append(time.perf_counter() - self._started)
        self.cpu += time.process_time() - self._cpu_started


def outcome(last: int, drafted: Sequence[int]) -> list[int]:
    """What the target decides: a rule that the draft knows, but for every tenth token."""
    tokens = [(31 * last + 7) % (VOCAB - 2) + 2]
    for guess in drafted:
        if guess != tokens[-1]:
            break
        tokens.append((31 * tokens[-1] + 7) % (VOCAB - 2) + 2)
    return tokens


def measure(batch: int, lookahead: int, rounds: int) -> tuple[Stopwatch, float]:
    """The times, and the tokens accepted a round."""
    draft = DraftHere()
    client = DraftClient(draft, lookahead=lookahead)
    policy = Policy(client, lookahead=lookahead, backup="none")
    while not client.is_ready:
        client.line.tend()
        draft.turn(1)
    lasts = []
    for index in range(batch):
        prompt = [2 + (index * 5 + place) % (VOCAB - 2) for place in range(32)]
        policy.begin(f"request-{index}", prompt, (), Sampling(seed=0), 1 << 30)
        lasts.append(prompt[-1])
    ids = [f"request-{index}" for index in range(batch)]
    drafted: list[Sequence[int]] = [()] * batch
    watch, num_accepted = Stopwatch(), 0
    for step in range(rounds + WARM_UP):
        if step == WARM_UP:
            watch, num_accepted = Stopwatch(), 0
        draft.turn(2 if batch == 1 else 3)
        watch.start()
        policy.take_in()
        watch.stop("take in")
        draft.turn(1)
        tokens = [outcome(*each) for each in zip(lasts, drafted, strict=True)]
        lasts = [each[-1] for each in tokens]
        num_accepted += sum(len(each) - 1 for each in tokens)
        outcomes = [
            Verified(*each) for each in zip(ids, tokens, [len(path) for path in drafted], strict=True)
        ]
        watch.start()
        policy.settle(outcomes, sum(1 + each.num_drafted for each in outcomes), 0.010)
        watch.stop("settle")
        watch.start()
        drafted = [path.tokens for path in policy.propose(ids)]
        watch.stop("propose")
    return watch, num_accepted / rounds / batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--lookahead", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("ms, p50/p99     settle        propose       both          take in       cpu     accepted")
    for batch in options.batch:
        watch, accepted = measure(batch, options.lookahead, options.rounds)
        both = [sum(each) for each in zip(watch.seconds["settle"], watch.seconds["propose"], strict=True)]
        columns = (watch.seconds["settle"], watch.seconds["propose"], both, watch.seconds["take in"])
        cuts = [statistics.quantiles(each, n=100) for each in columns]
        figures = "".join(f"{each[49] * 1e3:.3f}/{each[98] * 1e3:<8.3f}" for each in cuts)
        print(f"batch {batch:<10}{figures}{1e3 * watch.cpu / options.rounds:<8.3f}{accepted:.2f}")


if __name__ == "__main__":
    main()
