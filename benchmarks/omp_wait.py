"""How OpenMP's threads should wait: spinning for long (the library's default), briefly, or asleep.

    python -m benchmarks.omp_wait --model MODEL --rounds 12

Plain decoding on all cores, alone and beside a program that computes on one core. One engine for each policy
is alive; they generate in turns, so that all see the same disturbances. The fastest turn is the one least
disturbed: it tells what a policy costs on a quiet machine.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

from benchmarks.flags import parser
from ssd.bench.statistics import paired_ratio

FLAGS = {"model": str, "rounds": 12, "max-tokens": 32, "spin": 100}

_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_WORDS = "The speed of light is the same for all observers, and this has consequences. First,"


@contextmanager
def engine(model: str, max_tokens: int, variables: dict[str, str]) -> Iterator[Connection]:
    """A process that generates once for each word it is sent, and answers with tokens a second.

    OpenMP reads its variables when torch is imported, so each policy needs a process of its own.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    for name in _VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
    process = context.Process(target=_generate, args=(theirs, model, max_tokens), daemon=True)
    process.start()
    for name in _VARIABLES:
        os.environ.pop(name, None)
    ours.recv()
    yield ours
    ours.send("")
    process.join()


def _generate(line: Connection, model: str, max_tokens: int) -> None:
    from ssd.engine.llm import LLM
    from ssd.sampling import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    with LLM(model, show_progress=False, device="cpu", enable_prefix_caching=False) as llm:
        llm.generate(_WORDS, params, use_tqdm=False)
        line.send("ready")
        while line.recv():
            stamps = [time.perf_counter() for _ in llm.stream(_WORDS, params)]
            line.send((len(stamps) - 1) / (stamps[-1] - stamps[0]))


@contextmanager
def busy_core() -> Iterator[None]:
    """Another program that computes all the time, on any core."""
    process = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burn() -> None:
    while True:
        pass


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    policies = {
        # The library's own default, written out: the package sets another one where nothing is set.
        "spin 300000": {"GOMP_SPINCOUNT": "300000"},
        f"spin {options.spin}": {"GOMP_SPINCOUNT": str(options.spin)},
        "passive": {"OMP_WAIT_POLICY": "passive"},
    }
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(engine(options.model, options.max_tokens, variables))
            for name, variables in policies.items()
        }
        for scene in ("alone", "beside one busy program"):
            with ExitStack() as beside:
                if scene != "alone":
                    beside.enter_context(busy_core())
                found: dict[str, list[float]] = {name: [] for name in engines}
                for turn in range(options.rounds):
                    names = list(engines)
                    for name in names[turn % len(names) :] + names[: turn % len(names)]:
                        engines[name].send("generate")
                        found[name].append(engines[name].recv())
            first = found["spin 300000"]
            for name, rates in found.items():
                ratio = paired_ratio(rates, first)
                print(f"{scene:24} {name:15} {statistics.median(rates):6.2f} tok/s, {ratio} × the library's; "
                      f"fastest {max(rates):6.2f}, {max(rates) / max(first):.3f} ×", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
