"""One request with fields that no draft can take, beside four streams on two drafts: what do the others lose?

    python -m campaigns.vllm.hostile_request --model FOLDER --record FILE [--engine vllm|ssd] [--rounds 5]

Starts a server on core 0 and two drafts on core 1, and lets four clients stream. Runs go in turns: a fifth
request that is ordinary, the same with hostile fields, an ordinary one again. The ratio of hit rates of the
first two says what the hostile one costs the others, that of the first and the last how far equal runs
differ. Reconnects, losses, moves to the other draft and resynchronisations are counted by kind of run. Target
and draft agree on every token (agreeing.py), so that only a disturbed draft misses.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from benchmarks.served import KEY, PROMPT, Served, ask, begin, command, until_healthy
from benchmarks.streams import Streams
from campaigns.agreeing import write_agreeing_pair
from tests.server.process import ServerProcess, free_port, until

HOSTILE: tuple[dict[str, Any], ...] = (
    {"stop_token_ids": [-1]},
    {"stop_token_ids": [2**31]},
    {"stop_token_ids": [2**62, -(2**62)]},
    {"bad_words": ["crab crab crab " * 300] * 100},
    {"stop_token_ids": list(range(60_000))},
)
"""What vLLM takes. Our own server refuses ids outside the vocabulary, and so many words."""
HOSTILE_TO_OURS: tuple[dict[str, Any], ...] = (
    {"bad_words": ["\U0001f980" * 256] * 256},
    {"logit_bias": {str(token): -100.0 for token in range(1000, 2024)}},
    {"min_tokens": 47, "repetition_penalty": 100.0, "presence_penalty": 2.0},
    {"temperature": 1000.0, "top_p": 1e-300},
    {"stop_token_ids": list(range(64)), "seed": 2**63},
)
DISTURBANCES = ("draft_connects", "draft_losses", "draft_moved", "draft_resyncs")
STREAMS = 4


@contextlib.contextmanager
def drafts(place: Path, model: Path, count: int) -> Iterator[list[str]]:
    """Their addresses."""
    addresses = [f"ipc://{place}/draft{number}.sock" for number in range(count)]
    words = [
        sys.executable,
        "-m",
        "ssd",
        "draft",
        "--model",
        str(model),
        "--cores",
        "1",
    ]
    processes = []
    try:
        for number, address in enumerate(addresses):
            with (place / f"draft{number}.log").open("w") as log:
                processes.append(subprocess.Popen([*words, "--listen", address], stdout=log, stderr=log))
        yield addresses
    finally:
        for each in processes:
            each.terminate()
        for each in processes:
            each.wait()


@contextlib.contextmanager
def serving(place: Path, model: Path, addresses: Sequence[str], *, engine: str) -> Iterator[Served]:
    port, flags = free_port(), ["--draft", ",".join(addresses)]
    words = (
        command(_vllm_command(model), port, flags) if engine == "vllm" else _our_command(model, port, flags)
    )
    process, temporary = begin(place, words, VLLM_CPU_OMP_THREADS_BIND="0")
    server = Served(process, port, place / "log", temporary)
    try:
        until_healthy(server)
        until(lambda: _has_drafts(server, len(addresses)), seconds=300)
        yield server
    finally:
        server.end()


def _vllm_command(model: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "ssd", "serve", str(model), "--engine", "vllm"),
        *("--kv-cache-bytes", str(400 << 20), "--dtype", "float32"),
    ]


def _our_command(model: Path, port: int, flags: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "ssd", "serve", str(model), *flags, "--port", str(port)),
        *("--served-model-name", "served", "--dtype", "float32", "--max-model-len", "1024"),
        *("--max-num-seqs", "8", "--api-key", KEY, "--cores", "0"),
    ]


def _has_drafts(server: ServerProcess, count: int) -> bool:
    ask(server, max_tokens=2)
    return server.counted("ssd_drafts_ready") == count


def count_of(server: ServerProcess, name: str) -> float:
    """vLLM's worker has it as a gauge, our server as a counter."""
    return server.counted(f"ssd_{name}") + server.counted(f"ssd_{name}_total")


class Runs:
    def __init__(self, server: Served, *, num_tokens: int) -> None:
        self._server, self._num_tokens = server, num_tokens

    def hit_rate(self, fields: dict[str, Any]) -> float:
        """Of all sequences, while one has these fields."""
        before = self._judged()
        streams = Streams(self._server, num_tokens=self._num_tokens, rounds=1, clients=STREAMS)
        fifth = threading.Thread(target=self._ask, args=(fields,))
        fifth.start()
        seen = streams.join()
        fifth.join()
        if seen.lost:
            raise AssertionError(seen.lost[0])
        hits, rounds = (after - earlier for after, earlier in zip(self._judged(), before, strict=True))
        return hits / rounds if rounds else float("nan")

    def _ask(self, fields: dict[str, Any]) -> None:
        plain = {name: fields[name] for name in fields if name in ("temperature", "presence_penalty", "seed")}
        extra = {name: value for name, value in fields.items() if name not in plain}
        # What the server itself refuses costs nobody anything; it is asked all the same.
        with contextlib.suppress(Exception):
            ask(self._server, prompt=PROMPT, max_tokens=self._num_tokens, **plain, extra_body=extra)

    def _judged(self) -> tuple[float, float]:
        hits = self._server.counted("ssd_spec_hits_total")
        return hits, hits + self._server.counted("ssd_spec_misses_total")

    def counted_hit_rate(self, fields: dict[str, Any], disturbances: Counter[str]) -> float:
        """As `hit_rate`; adds what happened to connections and sequences meanwhile."""
        before = self._disturbances()
        found = self.hit_rate(fields)
        disturbances.update({name: int(now - before[name]) for name, now in self._disturbances().items()})
        return found

    def _disturbances(self) -> dict[str, float]:
        return {name: count_of(self._server, name) for name in DISTURBANCES}


def measured(
    server: Served, hostile: Sequence[dict[str, Any]], *, rounds: int, num_tokens: int
) -> dict[str, Any]:
    runs, ordinary = Runs(server, num_tokens=num_tokens), {"ignore_eos": True}
    runs.hit_rate(ordinary)  # The first time some things are slow that are not later.
    rates = list[tuple[float, float, float]]()
    calm, hurt = Counter[str](), Counter[str]()
    for number in range(rounds):
        fields = {"ignore_eos": True, **hostile[number % len(hostile)]}
        rates.append(
            (
                runs.counted_hit_rate(ordinary, calm),
                runs.counted_hit_rate(fields, hurt),
                runs.counted_hit_rate(ordinary, calm),
            )
        )
    return {
        "hit_rates": [[round(each, 4) for each in row] for row in rates],
        "hostile_to_ordinary": _median_ratio((first, hostile) for first, hostile, _ in rates),
        "ordinary_to_ordinary": _median_ratio((first, last) for first, _, last in rates),
        "in_hostile_runs": dict(hurt),
        "in_ordinary_runs": dict(calm),
    }


def _median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Of the second to the first; a run without any hit, on a machine that is far too busy, says nothing."""
    found = [after / before for before, after in pairs if before > 0]
    return round(statistics.median(found), 4) if found else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=4, help="of the draft; of the target: all")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--engine", choices=("vllm", "ssd"), default="vllm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    record = Record(options.record, {"rounds": options.rounds, "tokens": options.tokens, "streams": STREAMS})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        target, draft = write_agreeing_pair(options.model, place, num_layers=options.layers)
        addresses = stack.enter_context(drafts(place, draft, 2))
        server = stack.enter_context(serving(place / "server", target, addresses, engine=options.engine))
        hostile = HOSTILE if options.engine == "vllm" else HOSTILE_TO_OURS
        found = measured(server, hostile, rounds=options.rounds, num_tokens=options.tokens)
    record.add(f"hostile request, {options.engine}", found)
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main()
