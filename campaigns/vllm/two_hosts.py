"""A target over two hosts: a CPU rank of vLLM in each of two network namespaces, the draft in a third.

    python -m campaigns.vllm.two_hosts --model FOLDER --record docs/records/two_hosts.jsonl

The same requests, greedy and seeded, go to one host, to two of them, to two with a draft, and on while the
draft's host is cut off and comes back. The first two have the settings of the others, and a draft's address
that nobody answers: without one it would be stock vLLM, whose seeds mean other tokens. Ends with 1 if a text
differs, a request was lost, or there were no hits.

Needs root on Linux, vLLM beside this package, and a folder of a model, which drafts for itself. Hosts have
shared memory of their own, so that nothing but TCP joins them. Guesses from a text's own words are off: a hit
is the draft's.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from benchmarks.served import Served, begin, command, has_draft, is_healthy
from benchmarks.streams import Streams, Undisturbed
from campaigns.vllm.disturbances import Disturbances
from ssd.draft.protocol.sockets import make_keys
from ssd.integrations.vllm.settings import Settings
from tests.network.hosts import Network
from tests.network.programs import Program
from tests.network.relay import Way
from tests.server.process import until

FIRST, SECOND, DRAFTING = HOSTS = ("first", "second", "drafting")
_PORT, _MASTER_PORT, _DRAFT_PORT = 8000, 29500, 7000
_KV_BYTES = 128 << 20
_ANSWER_SECONDS = 600.0
"""Between two pieces of a text, on a machine that has other work."""
_SMALL = ("--kv-cache-memory-bytes", str(_KV_BYTES), "--max-num-batched-tokens", "512")
"""Three hosts share one machine's memory."""
_ONE_HOST = "one host"
_SILENCE = Settings().draft_timeout
_CUT_SECONDS = (2.0, _SILENCE + 5.0)
"""Shorter than the silence after which a draft is lost, and longer."""
_LOSSES = "ssd_draft_losses"
_SHM_IS_OFF = "CPU SHM communicator disabled for group tp"
"""What vLLM logs when ranks have no memory in common, and it takes gloo."""


@dataclass(frozen=True, slots=True)
class Fleet:
    network: Network
    folder: Path
    options: argparse.Namespace

    @property
    def draft_address(self) -> str:
        return f"tcp://{self.network.address(DRAFTING)}:{_DRAFT_PORT}"

    @contextmanager
    def on_one(self) -> Iterator[Served]:
        with self._node("alone", FIRST, self.options.cores[0], []) as server:
            self._until_up([server])
            yield server

    @contextmanager
    def on_two(self) -> Iterator[Served]:
        """The first answers; the second has a rank, and no port."""
        first, second = self.options.cores
        with (
            self._node("second", SECOND, second, [*self._node_flags(1), "--headless"]) as other,
            self._node("first", FIRST, first, self._node_flags(0)) as server,
        ):
            self._until_up([server, other])
            yield server

    @contextmanager
    def draft(self) -> Iterator[None]:
        options = self.options
        flags = ["--model", str(options.model), "--cores", options.draft_cores, "--lifeline"]
        flags += ["--listen", self.draft_address, "--keys", str(self.folder / "keys/draft")]
        flags += ["--kv-cache-bytes", str(_KV_BYTES), "--width", str(options.width)]
        flags += ["--precision", options.precision]
        program = Program(self.network, DRAFTING, ["ssd", "draft", *flags])
        try:
            yield
        finally:
            program.end()

    def cut_off(self, seconds: float) -> list[str]:
        """The draft's host, for a while; there is nothing to say of it."""
        for host in (FIRST, SECOND):
            self.network.between(host, DRAFTING, Way(is_cut=True))
        time.sleep(seconds)
        self.network.mend()
        return []

    def _node_flags(self, rank: int) -> list[str]:
        return [
            *("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp", "--nnodes", "2"),
            *("--node-rank", str(rank), "--master-addr", self.network.address(FIRST)),
            *("--master-port", str(_MASTER_PORT)),
        ]

    @contextmanager
    def _node(self, name: str, host: str, cores: str, own: Sequence[str]) -> Iterator[Served]:
        """`ssd serve` on a host, with its part of vLLM's ranks; it is not up yet."""
        flags = ("--draft", self.draft_address, "--draft-keys", str(self.folder / "keys/engine"))
        words = [sys.executable, "-m", "ssd", "serve", str(self.options.model), "--engine", "vllm"]
        words = command(words, _PORT, [*flags, "--backup", "none"], [*_SMALL, *own])
        process, temporary = begin(
            self.folder / name,
            self.network.command(host, with_own_memory(words)),
            VLLM_CPU_OMP_THREADS_BIND=cores,
            VLLM_HOST_IP=self.network.address(host),
            GLOO_SOCKET_IFNAME="tun",
        )
        server = Served(process, _PORT, self.folder / name / "log", temporary)
        server.openai = server.openai.with_options(timeout=_ANSWER_SECONDS)
        try:
            yield server
        finally:
            # One that takes longer is killed, and its ranks read the end of their lifeline.
            with suppress(subprocess.TimeoutExpired):
                server.end()

    def _until_up(self, servers: Sequence[Served]) -> None:
        def is_settled() -> bool:
            return is_healthy(servers[0]) or any(each.process.poll() is not None for each in servers)

        until(is_settled, seconds=self.options.start_seconds, what="the start")
        for each in servers:
            assert each.process.poll() is None, each.said


class Told:
    """What was found so far: on the terminal, and in the record."""

    def __init__(self, record: Record) -> None:
        self._record, self._began = record, time.monotonic()
        self.wrong: list[str] = []

    def find(self, case: str) -> dict[str, Any] | None:
        return self._record.find(case)

    def add(self, case: str, found: Mapping[str, Any]) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:.0f} s: {case}: {found}\n")
        sys.stdout.flush()
        self.wrong += found["wrong"]
        self._record.add(case, found)


def with_own_memory(words: Sequence[str]) -> list[str]:
    """Another host's /dev/shm is not this one's."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs shm /dev/shm && exec "$@"', "sh", *words]


def compared(texts: Sequence[str], others: Sequence[str]) -> tuple[int, list[str]]:
    """How many are equal, and those that are not, in words."""
    wrong = [f"{one!r} is not {other!r}" for one, other in zip(texts, others, strict=True) if one != other]
    return len(texts) - len(wrong), wrong


def with_draft(
    server: Served, usual: Undisturbed, alone: Undisturbed, asked: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Two hosts and their draft, undisturbed."""
    names = {"hits": "ssd_spec_hits_total", "rounds": "ssd_rounds_total"}
    before = {name: server.counted(metric) for name, metric in names.items()}
    seen = Streams(server, rounds=rounds, **asked).join()
    counted = {name: server.counted(metric) - before[name] for name, metric in names.items()}
    changed = usual.changed(seen)
    return {
        "texts": len(seen.texts),
        "equal": len(seen.texts) - len(changed),
        "equal_to_one_host": len(seen.texts) - len(alone.changed(seen)),
        **counted,
        "longest_gap": round(seen.longest_gap(), 3),
        "wrong": [*seen.lost, *changed, *([] if counted["hits"] else ["there was no hit"])],
    }


def cut_off(fleet: Fleet, happens: Disturbances, number: int) -> dict[str, Any]:
    """The draft's host, while clients stream; hits have to come back."""
    seconds = _CUT_SECONDS[number % len(_CUT_SECONDS)]
    before = happens.server.counted(_LOSSES)
    found = happens.disturb(partial(fleet.cut_off, seconds), random.Random(number), is_idle=False)
    losses = happens.server.counted(_LOSSES) - before
    return {**found, "losses": losses, "wrong": [*found["wrong"], *misjudged(seconds, losses)]}


def misjudged(seconds: float, losses: float) -> list[str]:
    """Whether a draft was given up that was away for so long."""
    if seconds > _SILENCE and not losses:
        return ["nobody noticed that the draft was gone"]
    return ["a short silence was taken for the draft's end"] if seconds < _SILENCE and losses else []


def one_host(fleet: Fleet, told: Told, asked: dict[str, Any]) -> Undisturbed:
    """From the record, if it has that."""
    if found := told.find(_ONE_HOST):
        return Undisturbed(found["given"], found["longest_gap"])
    with fleet.on_one() as server:
        alone = Undisturbed.of(server, **asked)
    told.add(_ONE_HOST, {"given": alone.texts, "longest_gap": round(alone.longest_gap, 3), "wrong": []})
    return alone


def run(fleet: Fleet, told: Told) -> None:
    options = fleet.options
    asked = {"num_tokens": options.tokens, "clients": options.clients}
    alone = one_host(fleet, told, asked)
    with fleet.on_two() as server:
        usual = Undisturbed.of(server, **asked)
        equal, wrong = compared(usual.texts, alone.texts)
        wrong += [] if _SHM_IS_OFF in server.said else ["ranks have memory in common"]
        found = {"texts": len(usual.texts), "equal_to_one_host": equal, "wrong": wrong}
        told.add("two hosts", {**found, "longest_gap": round(usual.longest_gap, 3)})
        with fleet.draft():
            until(lambda: has_draft(server), seconds=options.start_seconds, what="the draft")
            told.add("two hosts and a draft", with_draft(server, usual, alone, asked, options.rounds))
            happens = Disturbances(server, usual, options.tokens, clients=options.clients)
            for number in range(options.cuts):
                found = cut_off(fleet, happens, number)
                told.add(f"cut off {number}", {"usual_gap": round(usual.longest_gap, 3), **found})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=32, help="of each text")
    parser.add_argument("--clients", type=int, default=4, help="half of them greedy, half with seeds")
    parser.add_argument("--rounds", type=int, default=2, help="how often each asks with the draft there")
    parser.add_argument("--cuts", type=int, default=4)
    parser.add_argument("--cores", nargs=2, default=["0", "0"], help="of the first host, and of the second")
    parser.add_argument("--draft-cores", default="1")
    parser.add_argument("--width", type=int, default=12, help="rows of a step of the draft")
    parser.add_argument("--precision", default="int8", help="of the draft")
    parser.add_argument("--start-seconds", type=float, default=900.0)
    parser.add_argument("--record", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    # Whoever ends this program ends its servers too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names = ("tokens", "clients", "rounds", "cores", "draft_cores", "width", "precision")
    settings = {name: getattr(options, name) for name in names}
    told = Told(Record(options.record, {"model": options.model.name, **settings}))
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, Network(*HOSTS) as network:
        make_keys(Path(folder) / "keys")
        with network.inside(FIRST):
            run(Fleet(network, Path(folder), options), told)
    return int(bool(told.wrong))


if __name__ == "__main__":
    sys.exit(main())
