"""What an open line to a draft adds to a step of real vLLM. Run with the python of vLLM's venv.

    python -m benchmarks.vllm_steps --model FOLDER [--draft FOLDER] [--batch 1 8] [--turns 6] [--compiled]

vLLM in this process on one core, a real draft on another, in turns and in one vLLM:

    alone    nothing is drafted
    beside   nothing is drafted, but the draft's core computes its forwards all the time: what memory costs
    line     the draft follows all requests and speaks; what it proposes is withheld, so rows are the same

p50 and p99 of a step in ms, their differences, and our own share of it: begin, settle and propose as the
worker's meter has them. vLLM runs eagerly: on one core it compiles for many minutes (--compiled).
"""

import argparse
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.beside import computing_draft
from benchmarks.flags import parser
from benchmarks.in_turns import percentiles
from benchmarks.vllm_worker import stay_on

FLAGS = {
    "model": str, "draft": None, "batch": [1, 8], "turns": 6, "steps": 60,
    "core": 0, "draft-core": 1, "compiled": False,
}  # fmt: skip

WARM_UP = 8
PROMPT = 64
KINDS = ("alone", "beside", "line")
_PARTS = ("begin", "settle", "propose")


@contextmanager
def drafting(model: str, core: int) -> Iterator[str]:
    """A draft's address."""
    from ssd.processes.sockets import private_address

    address = private_address()
    words = ["--model", model, "--cores", str(core), "--listen", address, "--lifeline"]
    process = subprocess.Popen([sys.executable, "-m", "ssd", "draft", *words], stdin=subprocess.PIPE)
    yield address
    # Its lifeline: it takes the socket with it.
    process.communicate()


def withhold() -> None:
    """From here on sessions in this process do all their work and propose nothing of it."""
    from ssd.draft.client.speculator import Speculator
    from ssd.integrations.vllm.sessions import Sessions

    propose = Sessions.propose

    def kept(sessions: Sessions) -> tuple[list[str], list[list[int]]]:
        asked, paths = propose(sessions)
        return asked, [[] for _ in paths]

    Sessions.propose = kept  # type: ignore[assignment, method-assign]
    # None of its tokens is ever accepted here: it would soon be told to rest.
    Speculator._pause_or_resume = lambda speculator: None  # type: ignore[assignment, method-assign]


class Target:
    def __init__(self, options: argparse.Namespace, address: str) -> None:
        from vllm import LLM, SamplingParams

        from ssd.integrations.vllm import arguments

        self._num_steps = options.steps
        max_len = PROMPT + WARM_UP + options.steps + 16
        self._llm = LLM(
            options.model,
            dtype="float32",
            max_model_len=max_len,
            max_num_seqs=max(options.batch),
            max_num_batched_tokens=max(options.batch) * PROMPT,
            enable_prefix_caching=False,
            enforce_eager=not options.compiled,
            disable_log_stats=True,
            **arguments(address, lookahead=4, backup="none"),
        )
        self._params = SamplingParams(
            temperature=0, max_tokens=max_len - PROMPT - 1, ignore_eos=True, detokenize=False
        )
        self._draw = random.Random(1)
        self._names = map(str, itertools.count())
        while not self.report()["draft_up"]:
            time.sleep(0.1)

    def report(self) -> dict[str, float]:
        (found,) = self._llm.collective_rpc("ssd_report")
        return dict(found)

    def turn(self, batch: int, *, attached: bool) -> tuple[list[float], dict[str, float]]:
        """Seconds of each step, and what was counted meanwhile."""
        engine = self._llm.llm_engine
        self._llm.collective_rpc("ssd_attach" if attached else "ssd_detach")
        names = [next(self._names) for _ in range(batch)]
        for name in names:
            prompt = [self._draw.randrange(1000, 40_000) for _ in range(PROMPT)]
            engine.add_request(name, {"prompt_token_ids": prompt}, self._params)
        for _ in range(WARM_UP):
            engine.step()
        before, seconds = self.report(), []
        for _ in range(self._num_steps):
            started = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - started)
        after = self.report()
        engine.abort_request(names)
        engine.step()
        return seconds, {name: value - before.get(name, 0) for name, value in after.items()}


def measure(
    target: Target, line: Connection, batch: int, turns: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of all steps by kind, and the sums of what was counted with the line."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    counted: dict[str, float] = {}
    for turn in range(turns):
        for kind in (*KINDS[turn % len(KINDS) :], *KINDS[: turn % len(KINDS)]):
            if kind == "beside":
                line.send("loop")
                line.recv()
            seconds, counts = target.turn(batch, attached=kind == "line")
            found[kind] += seconds
            if kind == "beside":
                line.send("stop")
                line.recv()
            if kind == "line":
                counted = {name: counted.get(name, 0) + value for name, value in counts.items()}
    return found, counted


def show(batch: int, found: dict[str, list[float]], counted: dict[str, float]) -> None:
    cuts = {kind: percentiles(seconds, 50, 99) for kind, seconds in found.items()}
    for kind, (middle, high) in cuts.items():
        over = "".join(
            f"   over {other}: {1e3 * (middle - cuts[other][0]):+.2f} / {1e3 * (high - cuts[other][1]):+.2f}"
            for other in KINDS[: KINDS.index(kind)]
        )
        print(f"batch {batch}  {kind:7} p50 {1e3 * middle:7.2f}  p99 {1e3 * high:7.2f} ms{over}", flush=True)
    num_steps = len(found["line"])
    parts = {part: 1e3 * counted.get(f"host_seconds.{part}", 0) / num_steps for part in _PARTS}
    said = ", ".join(f"{part} {value:.3f}" for part, value in parts.items())
    print(f"batch {batch}  of which ours, mean ms a step: {said}; "
          f"{counted['draft_frames'] / num_steps:.2f} frames a step", flush=True)  # fmt: skip


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    draft, core = options.draft or options.model, options.draft_core
    with computing_draft(draft, core, "int8") as line, drafting(draft, core) as address:
        stay_on(options.core)
        withhold()
        target = Target(options, address)
        for batch in options.batch:
            show(batch, *measure(target, line, batch, options.turns))


if __name__ == "__main__":
    main()
