"""Simulates pools of targets and drafts, a scenario for each seed, in virtual time.

    python -m tests.pool.simulate --seeds 0:10000 [--processes 2] [--record FILE]
    python -m tests.pool.simulate --seeds 42 [--faults "killed draft,partition"]

Client and server are the real ones; forwards, sockets, clocks and DNS are stand-ins (checks.py lists what is
checked). A seed that fails is printed with the command that runs it again, which does exactly the
same. The record gets a line for each --part of them, and continues where it ends. Ends with 1 if a seed
failed.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.records import Record
from ssd.draft.protocol.messages import PROTOCOL_VERSION
from tests.pool.faults import KINDS
from tests.pool.scenario import scenario_of
from tests.pool.simulation import Found, Simulation


def run_seed(seed: int, *, kinds: Sequence[str] = ()) -> Found:
    # A thread more would change no result, and take the core of another process.
    torch.set_num_threads(1)
    return Simulation(scenario_of(seed, kinds=kinds)).run()


def replay(seed: int, kinds: Sequence[str] = ()) -> str:
    """The command that runs a seed again."""
    chosen = f' --faults "{",".join(kinds)}"' if kinds else ""
    return f"python -m tests.pool.simulate --seeds {seed}{chosen}"


def timed(seed: int, *, kinds: Sequence[str]) -> tuple[int, Found, float]:
    started = time.process_time()
    return seed, run_seed(seed, kinds=kinds), time.process_time() - started


@dataclass(slots=True)
class Totals:
    seeds: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trees: int = 0
    tokens: int = 0
    cpu: float = 0.0
    virtual: float = 0.0
    slowest: float = 0.0
    share: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, seed: int, found: Found, seconds: float) -> None:
        self.seeds += 1
        self.messages += found.messages
        self.events += found.events
        self.faults += found.faults
        self.trees += found.trees
        self.tokens += found.tokens
        self.cpu += seconds
        self.virtual += found.at
        self.slowest, self.share = max(self.slowest, found.recovered), max(self.share, found.share)
        if found.violation:
            self.failed[str(seed)] = found.violation

    def line(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "messages": dict(self.messages),
            "events": self.events,
            "faults": dict(sorted(self.faults.items())),
            "trees_compared": self.trees,
            "tokens": self.tokens,
            "cpu_hours": round(self.cpu / 3600, 4),
            "virtual_hours": round(self.virtual / 3600, 3),
            "slowest_recovery": round(self.slowest, 2),
            "worst_share": round(self.share, 3),
            "failed": self.failed,
        }


def ran(seeds: Sequence[int], kinds: Sequence[str], processes: int) -> Iterator[tuple[int, Found, float]]:
    run = partial(timed, kinds=kinds)
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds)


def seeds_of(text: str) -> range:
    first, _, last = text.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed: give one, or FIRST:END")
    return seeds


def kinds_of(text: str) -> list[str]:
    kinds = [each.strip() for each in text.split(",") if each.strip()]
    if unknown := [each for each in kinds if each not in KINDS]:
        raise argparse.ArgumentTypeError(f"unknown kinds of faults: {', '.join(unknown)}")
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default=range(100), help="one, or FIRST:END")
    parser.add_argument(
        "--faults", type=kinds_of, default=[], help=f"only these kinds, with commas: {', '.join(KINDS)}"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", type=int, default=100, help="seeds of a line of the record")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    kinds = options.faults
    run = {"protocol": PROTOCOL_VERSION, "faults": kinds}
    record = Record(options.record, run) if options.record else None
    num_failed = 0
    for first in range(options.seeds.start, options.seeds.stop, options.part):
        part = options.seeds[first - options.seeds.start :][: options.part]
        case = f"seeds {part.start} to {part.stop - 1}"
        line = record.find(case) if record else None
        if line is None:
            line = _run_part(part, kinds, options.processes)
            if record:
                record.add(case, line)
        num_failed += len(line["failed"])
    sys.stdout.write(f"{len(options.seeds)} seeds, {num_failed} failed\n")
    return int(num_failed > 0)


def _run_part(part: range, kinds: Sequence[str], processes: int) -> dict[str, Any]:
    totals, started = Totals(), time.perf_counter()
    for seed, found, seconds in ran(part, kinds, processes):
        totals.add(seed, found, seconds)
        if found.violation:
            sys.stdout.write(
                f"seed {seed} after {found.at:.3f} s: {found.violation}\n    {replay(seed, kinds)}\n"
            )
        if len(part) == 1:
            sys.stdout.write(f"seed {seed}: {found}\n")
    line = totals.line()
    sys.stdout.write(
        f"{part}: {line['cpu_hours'] * 3600:.0f} s of CPU in {time.perf_counter() - started:.0f} s\n"
    )
    sys.stdout.flush()
    return line


if __name__ == "__main__":
    sys.exit(main())
