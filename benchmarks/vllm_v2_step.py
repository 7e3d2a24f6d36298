"""What our code adds to a step of vLLM's V2 model runner, on the host. Run with the python of vLLM's venv.

    python -m benchmarks.vllm_v2_step [--batch 1 64 256] [--turns 4] [--steps 60] [--profile]

Our worker, sessions, client and draft service are real. A rule stands for both models (ruled.py), queues for
sockets, and vLLM's scheduler, forward and output are stand-ins (tests/vllm/v2_step.py). The draft takes its
steps between those of the target, so hits and frames do not depend on what else the machine does.
Asynchronous: two steps are under way. Milliseconds of a step that this thread had a core, the least and p50:

    begin     execute_model: requests that begin and end
    propose   asynchronous: changed nodes are collected and uploaded, the kernel is launched
              synchronous: paths are chosen and given to the scheduler
    settle    tokens are sent to the draft; in vLLM, if asynchronous, by the thread that reads outputs
    ours      the three
    take in   frames of the draft are read; while the device computes

Tensors are on the CPU, so an upload costs nothing, and the kernel's launch is left out: it is a stand-in.
"""

import cProfile
import pstats
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.client_work import DraftHere
from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from benchmarks.ruled import shape_of

FLAGS: dict[str, object] = {
    "batch": [1, 64, 256],
    "lookahead": 4,
    "turns": 4,
    "steps": 60,
    "profile": False,
}
WARM_UP = 20
MOST_UNDER_WAY = 2
DRAFT_STEPS = 3
"""Of the draft in a step of the target."""
OURS = ("begin", "propose", "settle")
SHOWN = (*OURS, "ours", "take in")


class Stopwatch:
    """Seconds of a step by name; a name that is timed within another counts for itself only.

    Of this thread: what other programs do meanwhile does not count, and neither would waiting, which there is
    none of (tests/vllm/test_step_cost.py).
    """

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._names = list[str]()
        self._since = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        self._count()
        self._names.append(name)
        self._since = time.thread_time()
        try:
            yield
        finally:
            self._count()
            self._names.pop()
            self._since = time.thread_time()

    def _count(self) -> None:
        if self._names:
            self.seconds[self._names[-1]] += time.thread_time() - self._since

    def take(self) -> dict[str, float]:
        found, self.seconds = self.seconds, defaultdict(float)
        return {**found, "ours": sum(found[name] for name in OURS)}


class Bench:
    def __init__(self, batch: int, depth: int, options: Any, *, is_async: bool) -> None:
        """`depth`: how far the draft looks ahead."""
        from ssd.draft.client.client import DraftClient
        from ssd.draft.client.connection import FixedSources
        from ssd.draft.client.speculator import Speculator
        from ssd.integrations.vllm.meter import Meter
        from tests.vllm.v2_step import Shape, StandInTarget

        self._draft = DraftHere(shape_of(batch, depth, width=max(64, batch)))
        client = DraftClient(FixedSources(self._draft), lookahead=depth, num_sequences=batch)
        self.speculator = Speculator(client, lookahead=depth)
        while not client.is_ready:
            client.pool.tend()
            self._draft.turn(DRAFT_STEPS)
        self._watch = Stopwatch()
        take_in = self.speculator.take_in

        def timed() -> None:
            with self._watch.of("take in"):
                take_in()

        self.speculator.take_in = timed  # type: ignore[method-assign]
        shape = Shape(batch, options.lookahead, is_async=is_async)
        self.target = StandInTarget(self.speculator, shape, meter=Meter(), watch=self._watch.of)
        self.steps = list[dict[str, float]]()

    def turn(self, num_steps: int, profiler: cProfile.Profile | None) -> None:
        """New requests, and so many steps of them that are measured."""
        under_way = deque[Any]()
        for step in range(-WARM_UP, num_steps):
            record = self.target.begin() if step == -WARM_UP else self.target.next()
            self._draft.turn(DRAFT_STEPS)
            if profiler is not None and step >= 0:
                profiler.enable()
            if len(under_way) == MOST_UNDER_WAY:
                self._settle(under_way.popleft())
            output = self.target.launch(record)
            if profiler is not None:
                profiler.disable()
            if self.target.shape.is_async:
                under_way.append(output)
            seconds = self._watch.take()
            if step >= 0:
                self.steps.append(seconds)
        for output in under_way:
            self._settle(output)

    def _settle(self, output: Any) -> None:
        with self._watch.of("settle"):
            output.get_output()


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    # An asynchronous step is launched before the outcomes of two are known (opening.py).
    depths = {True: (3 * options.lookahead + 2) // 2, False: options.lookahead}
    print("ms, least/p50          " + "".join(f"{name:<15}" for name in SHOWN) + "accepted  hits  frames")
    for is_async, depth in depths.items():
        for batch in options.batch:
            measure(options, batch, depth, is_async=is_async)


def measure(options: Any, batch: int, depth: int, *, is_async: bool) -> None:
    bench = Bench(batch, depth, options, is_async=is_async)
    profiler = cProfile.Profile() if options.profile else None
    with bench.target.running():
        for _ in range(options.turns):
            bench.turn(options.steps, profiler)
    report = bench.target.sessions.report()
    bench.speculator.close()
    figures = ""
    for name in SHOWN:
        seconds = [each.get(name, 0.0) for each in bench.steps]
        figures += f"{f'{1e3 * min(seconds):.3f}/{1e3 * percentiles(seconds, 50)[0]:.3f}':<15}"
    rounds = report["rounds"] or 1
    kind = "asynchronous" if is_async else "synchronous"
    print(
        f"{kind:<13} batch {batch:<4}{figures}{bench.target.num_accepted / rounds:<10.2f}"
        f"{report['spec_hits'] / rounds:<6.2f}"
        f"{report['draft_frames'] / (options.turns * (options.steps + WARM_UP)):.1f}",
        flush=True,
    )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
