"""What speculation costs a host that verifies: seconds of settling and proposing, with live frames.

    python -m benchmarks.client_work [--batch 1 16 64] [--lookahead 8] [--rounds 300]

The draft server, forest, sessions, protocol and speculator are real; a rule (ruled.py) stands for both
models, and queues for sockets, so that only the client's own work is timed. The draft takes some steps while
the target "computes", which the host takes in there, and one more before proposals are asked for. p50/p99 in
ms; `cpu` is the process's time of settle, propose and taking in, in ms a round.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from benchmarks.ruled import RuledModel, hello, outcome, prompt_of, scheduler_of, shape_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, FixedSources
from ssd.draft.client.speculator import Speculator, Verified
from ssd.draft.protocol.messages import Sampling
from ssd.draft.server.server import DraftServer
from ssd.draft.tree.tables import Shape
from tests.e2e.draft_in_memory import DraftEnd, EngineEnd, Wires

FLAGS = {"batch": [1, 16, 64], "lookahead": 8, "rounds": 300}

WARM_UP = 20


class DraftHere:
    """A draft service in this process, and lines to it."""

    def __init__(
        self,
        shape: Shape | None = None,
        clock: Callable[[], float] = time.monotonic,
        model: RuledModel | None = None,
    ) -> None:
        self._wires, self._clock = Wires(), clock
        scheduler = scheduler_of(model or RuledModel(), prefill_chunk=4096, shape=shape, clock=clock)
        self._service = DraftServer(scheduler, DraftEnd(self._wires), hello("draft"), clock)

    name = "a draft"

    @property
    def frames_to_draft(self) -> deque[bytes]:
        """Frames that the client has sent and the draft has not read."""
        return self._wires.to_draft

    @property
    def frames_to_engine(self) -> deque[bytes]:
        return self._wires.to_engine

    def connect(self) -> Connection | None:
        link = EngineEnd(self._wires, lambda: None)
        return Connection(link, hello("target"), self._clock, timeout=60.0, hello_timeout=60.0)

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
        self.seconds = defaultdict[str, list[float]](list)
        self.cpu = 0.0

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        worked, started = time.process_time(), time.perf_counter()
        yield
        self.seconds[kind].append(time.perf_counter() - started)
        self.cpu += time.process_time() - worked


def measure(batch: int, lookahead: int, rounds: int) -> tuple[Stopwatch, float]:
    """The times, and the tokens accepted a round."""
    draft = DraftHere(shape_of(batch, lookahead, width=max(64, batch)))
    client = DraftClient(FixedSources(draft), lookahead=lookahead)
    speculator = Speculator(client, lookahead=lookahead, backup="none")
    while not client.is_ready:
        client.pool.tend()
        draft.turn(1)
    ids, lasts = [f"request-{index}" for index in range(batch)], []
    for index, name in enumerate(ids):
        speculator.begin(name, prompt_of(index), (), Sampling(seed=0), 1 << 30)
        lasts.append(prompt_of(index)[-1])
    drafted: list[Sequence[int]] = [()] * batch
    watch, num_accepted = Stopwatch(), 0
    for step in range(rounds + WARM_UP):
        if step == WARM_UP:
            watch, num_accepted = Stopwatch(), 0
        draft.turn(2 if batch == 1 else 3)
        with watch.of("take in"):
            speculator.take_in()
        draft.turn(1)
        tokens = [outcome(*each) for each in zip(lasts, drafted, strict=True)]
        lasts = [each[-1] for each in tokens]
        num_accepted += sum(len(each) - 1 for each in tokens)
        outcomes = [Verified(*each) for each in zip(ids, tokens, map(len, drafted), strict=True)]
        with watch.of("settle"):
            speculator.settle(outcomes, sum(1 + each.num_drafted for each in outcomes), 0.010)
        with watch.of("propose"):
            drafted = [path.tokens for path in speculator.propose(ids)]
    return watch, num_accepted / rounds / batch


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    print("ms, p50/p99     settle        propose       both          take in       cpu     accepted")
    for batch in options.batch:
        watch, accepted = measure(batch, options.lookahead, options.rounds)
        settle, propose, taking_in = (watch.seconds[kind] for kind in ("settle", "propose", "take in"))
        both = [sum(each) for each in zip(settle, propose, strict=True)]
        cuts = [percentiles(each, 50, 99) for each in (settle, propose, both, taking_in)]
        figures = "".join(f"{1e3 * middle:.3f}/{1e3 * high:<8.3f}" for middle, high in cuts)
        print(f"batch {batch:<10}{figures}{1e3 * watch.cpu / options.rounds:<8.3f}{accepted:.2f}")


if __name__ == "__main__":
    main()
