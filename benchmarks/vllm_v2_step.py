"""What our code adds to a step of vLLM's V2 model runner, on the host. Run with the python of vLLM's venv.

    python -m benchmarks.vllm_v2_step [--batch 1 64 256] [--forward 0.03] [--turns 4] [--steps 60] [--profile]

Our worker, sessions, client and sockets are real, and so is the draft service in its own process. A rule
stands for both models (sleeping.py), and vLLM's scheduler, forward and output are stand-ins
(tests/vllm/v2_step.py). A forward of the target takes 30 ms, one of the draft 3 ms. Asynchronous: two steps
are under way, and a thread reads their outputs. p50 / p90 of a step in ms:

    begin     execute_model: requests that begin and end
    propose   asynchronous: changed nodes are collected and uploaded, the kernel is launched
              synchronous: paths are chosen and given to the scheduler
    settle    tokens are sent to the draft; asynchronous: by the thread that reads outputs
    ours      the three
    take in   frames of the draft are read; while the device computes

Tensors are on the CPU, so an upload costs nothing, and the kernel's launch is left out: it is a stand-in.
"""

import cProfile
import multiprocessing
import pstats
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from benchmarks.ruled import hello, scheduler_of, shape_of
from benchmarks.sleeping import SleepingDraft

FLAGS: dict[str, object] = {
    "batch": [1, 64, 256],
    "lookahead": 4,
    "forward": 0.030,
    "turns": 4,
    "steps": 60,
    "profile": False,
}
WARM_UP = 20
MOST_UNDER_WAY = 2
DRAFT_FORWARD, AWAKE_SECONDS = 0.003, 0.003
OURS = ("begin", "propose", "settle")
SHOWN = (*OURS, "ours", "take in")


class Stopwatch:
    """Seconds of a step by name; a name that is timed within another counts for itself only."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._names = list[str]()
        self._since = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        self._count()
        self._names.append(name)
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._count()
            self._names.pop()
            self._since = time.perf_counter()

    def _count(self) -> None:
        if self._names:
            self.seconds[self._names[-1]] += time.perf_counter() - self._since

    def take(self) -> dict[str, float]:
        found, self.seconds = self.seconds, defaultdict(float)
        return {**found, "ours": sum(found[name] for name in OURS)}


class Device:
    """Ends a forward some time after it was launched, or after the one before it has ended."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = list[float]()
        self._last = 0.0

    def launch(self) -> None:
        self._last = max(self._last, time.perf_counter()) + self._seconds
        self._ends.append(self._last)

    def wait(self) -> None:
        """Busy at the end: a core that wakes up has cold caches, and would be measured with them."""
        ends = self._ends.pop(0)
        time.sleep(max(0.0, ends - AWAKE_SECONDS - time.perf_counter()))
        while time.perf_counter() < ends:
            pass


def run_draft(address: str, batch: int, lookahead: int) -> None:
    from ssd.draft.protocol.sockets import ZmqDraftSocket
    from ssd.draft.server.server import DraftServer

    torch.set_num_threads(1)
    shape = shape_of(batch, lookahead, width=max(64, batch))
    scheduler = scheduler_of(SleepingDraft(DRAFT_FORWARD), prefill_chunk=4096, shape=shape)
    DraftServer(scheduler, ZmqDraftSocket(address), hello("draft")).run(lambda: False)


class Bench:
    def __init__(self, address: str, batch: int, depth: int, options: Any, *, is_async: bool) -> None:
        """`depth`: how far the draft looks ahead. A profile is of one thread: with it nothing has another."""
        from ssd.draft.client.client import DraftClient
        from ssd.draft.client.connection import AddressSource, FixedSources
        from ssd.draft.client.speculator import Speculator
        from ssd.integrations.vllm.meter import Meter
        from tests.vllm.v2_step import Shape, StandInTarget

        source = AddressSource(address, hello("target"), timeout=60.0)
        client = DraftClient(FixedSources(source), lookahead=depth, num_sequences=batch)
        self.speculator = Speculator(client, lookahead=depth)
        self.speculator.start(60.0)
        self._watch, self._device = Stopwatch(), Device(options.forward)
        take_in = self.speculator.take_in

        def timed() -> None:
            with self._watch.of("take in"):
                take_in()

        self.speculator.take_in = timed  # type: ignore[method-assign]
        shape = Shape(batch, options.lookahead, is_async=is_async)
        self.target = StandInTarget(
            self.speculator, shape, meter=Meter(), watch=self._watch.of, wait=self._device.wait
        )
        self._reader = None if options.profile else ThreadPoolExecutor(1)
        self.steps = list[dict[str, float]]()

    def turn(self, num_steps: int) -> None:
        """New requests, and so many steps of them that are measured."""
        under_way = deque[Any]()
        for step in range(-WARM_UP, num_steps):
            record = self.target.begin() if step == -WARM_UP else self.target.next()
            if len(under_way) == MOST_UNDER_WAY:
                self._settle(under_way.popleft())
            self._device.launch()
            output = self.target.launch(record)
            if self.target.shape.is_async:
                under_way.append(output)
            seconds = self._watch.take()
            if step >= 0:
                self.steps.append(seconds)
        for output in under_way:
            self._settle(output)

    def _settle(self, output: Any) -> None:
        """As in vLLM a thread reads the output, and the next step is scheduled after that."""
        if self._reader is None:
            self._read(output)
        else:
            self._reader.submit(self._read, output).result()

    def _read(self, output: Any) -> None:
        with self._watch.of("settle"):
            output.get_output()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.shutdown()
        self.speculator.close()


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    # An asynchronous step is launched before the outcomes of two are known (opening.py).
    depths = {True: (3 * options.lookahead + 2) // 2, False: options.lookahead}
    print("ms, p50/p90            " + "".join(f"{name:<15}" for name in SHOWN) + "accepted  hits  frames")
    for is_async, depth in depths.items():
        for batch in options.batch:
            measure(options, batch, depth, is_async=is_async)


def measure(options: Any, batch: int, depth: int, *, is_async: bool) -> None:
    from ssd.processes.sockets import private_address

    address = private_address()
    arguments = (address, batch, depth)
    draft = multiprocessing.get_context("spawn").Process(target=run_draft, args=arguments, daemon=True)
    draft.start()
    bench = Bench(address, batch, depth, options, is_async=is_async)
    profiler = cProfile.Profile()
    with bench.target.running():
        for _ in range(options.turns):
            if options.profile:
                profiler.enable()
            bench.turn(options.steps)
            profiler.disable()
    report = bench.target.sessions.report()
    bench.close()
    draft.kill()
    cuts = [percentiles([each.get(name, 0.0) for each in bench.steps], 50, 90) for name in SHOWN]
    figures = "".join(f"{f'{1e3 * middle:.3f}/{1e3 * high:.3f}':<15}" for middle, high in cuts)
    rounds = report["rounds"] or 1
    kind = "asynchronous" if is_async else "synchronous"
    print(
        f"{kind:<13} batch {batch:<4}{figures}{bench.target.num_accepted / rounds:<10.2f}"
        f"{report['spec_hits'] / rounds:<6.2f}"
        f"{report['draft_frames'] / (options.turns * (options.steps + WARM_UP)):.1f}",
        flush=True,
    )
    if options.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
