"""How much two bare forwards slow each other down when they run at the same time, each on a core of its own.

    python -m benchmarks.beside --target MODEL --draft SMALL_MODEL --rounds 20

Alone and beside, in turns. The ratios are `beside` in benchmarks/validation/two_cores.json: what
`python -m benchmarks.validation` may know of contention. Needs a quiet machine.
"""

import multiprocessing
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.flags import parser
from ssd.bench.bare_forward import bare_forward
from ssd.config import Precision, RunnerConfig
from ssd.runtime.loading import LoadedModel, load_model
from ssd.tuning.measure import precisions_of

FLAGS = {"target": str, "draft": str, "rounds": 20, "core": 0, "draft-core": 1}

TARGET_ROWS, DRAFT_ROWS = 9, 12


def config(model: str, core: int, precision: Precision = "model") -> RunnerConfig:
    return RunnerConfig(
        model=model, device="cpu", cores=(core,), max_model_len=2048, max_num_seqs=16, precision=precision
    )


@contextmanager
def computing_draft(model: str, core: int, precision: Precision) -> Iterator[Connection]:
    """A process that computes a draft's forwards on its core when it is told to."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_draft_process, args=(theirs, model, core, precision), daemon=True)
    process.start()
    ours.recv()
    yield ours
    ours.send("end")
    process.join()


def _draft_process(line: Connection, model: str, core: int, precision: Precision) -> None:
    """Answers `once` with a forward's time, and `loop` with those of all forwards until the next word."""
    draft: LoadedModel = load_model(config(model, core, precision))
    bare_forward(draft, DRAFT_ROWS)
    line.send("ready")
    while (word := line.recv()) != "end":
        times = [bare_forward(draft, DRAFT_ROWS)]
        if word == "loop":
            line.send("computing")
            while not line.poll():
                times.append(bare_forward(draft, DRAFT_ROWS))
            line.recv()
        line.send(times)


def measure(target: LoadedModel, line: Connection, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"target": [], "target beside": [], "draft": [], "draft beside": []}
    for _ in range(rounds):
        found["target"].append(bare_forward(target, TARGET_ROWS))
        line.send("once")
        found["draft"] += line.recv()
        line.send("loop")
        line.recv()
        found["target beside"] += [bare_forward(target, TARGET_ROWS) for _ in range(2)]
        line.send("stop")
        # The first of them began alone, the last may have ended so.
        found["draft beside"] += line.recv()[1:-1]
    return found


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    target = load_model(config(options.target, options.core))
    bare_forward(target, TARGET_ROWS)
    for precision in precisions_of(config(options.draft, options.draft_core)):
        with computing_draft(options.draft, options.draft_core, precision) as line:
            found = measure(target, line, options.rounds)
        middle = {name: statistics.median(times) for name, times in found.items()}
        for name in ("target", "draft"):
            beside, alone = middle[f"{name} beside"], middle[name]
            print(f"{precision:6} {name:6} alone {alone * 1e3:6.1f} ms, beside {beside * 1e3:6.1f} ms: "
                  f"× {beside / alone:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
