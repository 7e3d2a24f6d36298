"""What a draft costs its host with very many sequences: memory, time a step, and what of it takes longest.

    python -m benchmarks.many_sequences [--sequences 64 256 1000] [--tenants 4] [--width 64] [--ticks 60]

The real service and clients in one thread, with queues for sockets and a rule for the models
(tests/draft/crowd.py). A round of a target is five steps of the draft. Milliseconds a step of the draft
without its forward, as its thread computed, p50/p90 with all sequences open; the parts of one are means.
Each line is a line of JSON too, in --record.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from ssd.draft.server import host_steps
from ssd.draft.server.server import DraftServer
from tests.draft.crowd import Crowd

FLAGS: dict[str, object] = {
    "sequences": [64, 256, 1000],
    "tenants": 4,
    "width": 64,
    "ticks": 60,
    "record": "runs/many_sequences.jsonl",
}
_PAGE = 4096
_OPENING_TICKS = 20


class Watch:
    """Seconds that this thread computed in some calls, by name; what others compute meanwhile is left out."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.steps: list[float] = []
        """Of each turn of the service, without its forward."""

    def over_turns(self, service: DraftServer) -> None:
        turn = service.turn

        def timed(timeout: float) -> bool:
            forward, started = self.seconds["forward"], time.thread_time()
            is_busy = turn(timeout)
            self.steps.append(time.thread_time() - started - (self.seconds["forward"] - forward))
            return is_busy

        service.turn = timed  # type: ignore[method-assign]

    def over(self, owner: Any, method: str, name: str) -> None:
        """From here on, calls of this method count under this name."""
        called: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.counted(name):
                return called(*arguments, **named)

        setattr(owner, method, timed)

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        started = time.thread_time()
        yield
        self.seconds[name] += time.thread_time() - started


def watched(crowd: Crowd) -> Watch:
    watch, scheduler, service = Watch(), crowd.scheduler, crowd.service
    steps: Any = scheduler._steps
    watch.over(steps._model, "forward", "forward")
    for name in ("select", "attach", "apply"):
        watch.over(steps.forest, name, name)
    watch.over(steps._children, "of", "children")
    watch.over(host_steps, "find_runs", "lookup")
    watch.over(service, "_send_nodes", "frames")
    watch.over(service, "_take_in", "messages")
    watch.over_turns(service)
    return watch


def resident() -> float:
    """MB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


def measure(sequences: int, options: Any) -> dict[str, Any]:
    before = resident()
    crowd = Crowd(sequences=sequences, width=options.width)
    tables = resident() - before
    for number in range(options.tenants):
        crowd.add(f"tenant {number}", sequences // options.tenants, prompt=2, max_tokens=1 << 20)
    # Do not wait until all texts are read: a draft too narrow for its sequences always has unread text.
    crowd.run(_OPENING_TICKS)
    if crowd.scheduler.num_sessions < sequences // options.tenants * options.tenants:
        raise SystemExit(f"only {crowd.scheduler.num_sessions} of {sequences} sequences are open")
    watch = watched(crowd)
    crowd.run(options.ticks)
    parts = {
        name: round(1e3 * seconds / options.ticks, 2)
        for name, seconds in watch.seconds.items()
        if name != "forward"
    }
    p50, p90 = percentiles([1e3 * each for each in watch.steps], 50, 90)
    return {
        "sequences": crowd.scheduler.num_sessions,
        "tenants": options.tenants,
        "unread": len(crowd.scheduler._prefill.unread),
        "width": options.width,
        "tables_mb": round(tables, 1),
        "process_mb": round(resident(), 1),
        "step_ms": [round(p50, 2), round(p90, 2)],
        "rows": crowd.service._work.num_rows // max(1, crowd.service._work.num_steps),
        "parts_ms": parts,
    }


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    record = Path(options.record)
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a") as file:
        for sequences in options.sequences:
            said = json.dumps(measure(sequences, options))
            print(said, flush=True)
            file.write(said + "\n")


if __name__ == "__main__":
    main()
