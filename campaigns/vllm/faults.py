"""Real vLLM with a real draft behind `ssd serve`, and everything that may happen to both of them.

    python -m campaigns.vllm.faults --target FOLDER --draft FOLDER --record FILE.jsonl

The draft is killed and frozen under eight concurrent streams (disturbances.py), the server ended at random
moments (endings.py). equality.py says how vLLM's V2 runner runs without a GPU. Each case is a line of the
record, and one that stands there is not run again: a run may be ended at any time, or told to after some
`--seconds`. What a case draws depends on `--seed` and its name alone. Ends with 1 if anything went wrong in
any case of the record.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.records import Record
from benchmarks.served import Served, serving, until_ready
from benchmarks.streams import Undisturbed
from campaigns.vllm.cases import PROMPTS
from campaigns.vllm.disturbances import Disturbances
from campaigns.vllm.endings import SIGNALS, START_SECONDS, end_while_serving, end_while_starting, started

Case = Callable[[Random], dict[str, Any]]
_IDLE_EVERY = 5
"""Every fifth disturbance of a kind meets a server without requests."""


class Cases:
    """Those of a record that stand there, and those that are run."""

    def __init__(self, record: Record, seed: int, seconds: float) -> None:
        self._record, self._seed = record, seed
        self._deadline = time.monotonic() + seconds

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [line for line in self._record.lines() if line["run"] == self._record.run]

    def run(self, cases: Mapping[str, Case]) -> None:
        """Those that are missing, as long as there is time."""
        for name in self.missing(cases):
            if time.monotonic() > self._deadline:
                return
            began = time.monotonic()
            try:
                found = cases[name](Random(f"{self._seed} {name}"))
            except AssertionError as error:
                found = {"wrong": [str(error) or "it did not happen"]}
            self.write(name, {"seconds": round(time.monotonic() - began, 1), **found})

    def missing(self, cases: Mapping[str, Any]) -> list[str]:
        known = {line["case"] for line in self.lines}
        return [name for name in cases if name not in known]

    def write(self, case: str, found: dict[str, Any]) -> None:
        print(case, json.dumps(found), flush=True)
        self._record.add(case, found)


Start = Callable[[Path, Path, Path], AbstractContextManager[Served]]
"""Of a server, from a new folder, the target and the draft."""


def disturb(arguments: argparse.Namespace, cases: Cases, start: Start = serving) -> None:
    """One server for all cases of a run."""
    counts = {"kill": arguments.kills, "freeze": arguments.freezes}
    in_turn = sorted(
        (number / count, number, kind) for kind, count in counts.items() for number in range(count)
    )
    kinds = {f"{kind} {number}": (kind, number % _IDLE_EVERY == 1) for _, number, kind in in_turn}
    if not cases.missing(kinds):
        return
    began = time.monotonic()
    with _new_folder() as place, start(place, arguments.target, arguments.draft) as server:
        start_seconds = round(time.monotonic() - began, 1)
        usual = Undisturbed.of(server, num_tokens=arguments.tokens, clients=arguments.clients)
        gap = round(usual.longest_gap, 3)
        cases.write("undisturbed", {"start_seconds": start_seconds, "longest_gap": gap, "wrong": []})
        happens = Disturbances(
            server,
            usual,
            arguments.tokens,
            needs_hits=not arguments.slow_draft,
            clients=arguments.clients,
        )
        does = {"kill": happens.kill, "freeze": happens.freeze}
        cases.run({name: partial(does[kind], idle=idle) for name, (kind, idle) in kinds.items()})


def end(arguments: argparse.Namespace, cases: Cases) -> None:
    """Half of them during the start; each half with all signals in turn."""
    endings = dict[str, Case]()
    for number in range(arguments.endings):
        moment = ("starting", "serving")[number % 2]
        endings[f"ending {number} while {moment}"] = partial(
            _end_one, moment, (arguments.target, arguments.draft), SIGNALS[number // 2 % len(SIGNALS)]
        )
    cases.run(endings)


def _end_one(moment: str, models: tuple[Path, Path], number: int, chance: Random) -> dict[str, Any]:
    with _new_folder() as place, started(place, models) as server:
        if moment == "starting":
            return end_while_starting(server, number, chance.uniform(0.0, START_SECONDS))
        until_ready(server)
        return end_while_serving(server, number, chance.uniform(0.0, 6.0))


@contextmanager
def _new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        yield Path(folder)


def summary(lines: list[dict[str, Any]]) -> str:
    """One line for people."""
    said = []
    for kind in ("kill", "freeze", "ending", "undisturbed"):
        cases = [line for line in lines if line["case"].startswith(kind)]
        words = [f"{len(cases)} × {kind}"]
        if gaps := [line["longest_gap"] for line in cases if "longest_gap" in line]:
            words.append(f"longest gap {max(gaps)} s")
        if hits := [line["returned_after_seconds"] for line in cases if "returned_after_seconds" in line]:
            equal, all_texts = (sum(line.get(name, 0) for line in cases) for name in ("equal", "requests"))
            words.append(f"{equal} of {all_texts} texts equal, back after at most {max(hits)} s")
        said.append(", ".join(words))
    return "; ".join([*said, f"{sum(bool(line['wrong']) for line in lines)} went wrong"])


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Options from these words, or from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--freezes", type=int, default=10)
    parser.add_argument("--endings", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--clients", type=int, default=len(PROMPTS), help="streams at once")
    parser.add_argument("--slow-draft", action="store_true", help="it cannot keep up: no hits are asked for")
    parser.add_argument(
        "--asynchronous", action="store_true", help="with vLLM's asynchronous scheduling (V2)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no case is begun")
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    # Whoever ends this program ends its server too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(run(arguments))


def run(arguments: argparse.Namespace, start: Start = serving) -> int:
    """All cases that the record lacks; 1 if anything went wrong in any case of the record."""
    if arguments.asynchronous:
        start = partial(serving, own=["--async-scheduling"])
    named = {"target": arguments.target.name, "draft": arguments.draft.name, "tokens": arguments.tokens}
    if arguments.asynchronous:
        named["asynchronous"] = True
    record = Record(arguments.record, {**named, "seed": arguments.seed})
    cases = Cases(record, arguments.seed, arguments.seconds)
    disturb(arguments, cases, start)
    end(arguments, cases)
    print(summary(cases.lines))
    return int(any(line["wrong"] for line in cases.lines))


if __name__ == "__main__":
    main()
