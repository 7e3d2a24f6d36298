"""A server for an hour: mixed traffic, drafts that are killed, and hostile clients, all at once.

    python -m benchmarks.soak --minutes 60

`ssd serve` with a tiny model and a draft. Every answer to an honest client is compared with the one that the
engine gives alone; hostile clients (soak_attacks.py) send grammars that take minutes, half requests and long
texts, and open streams that they do not read. Ends with 1 if an answer changed, a request was lost, or the
server holds more memory, files, threads, KV blocks or sessions than it did.
"""

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.flags import parser
from benchmarks.soak_attacks import Aim, Harm, attack
from benchmarks.soak_clients import PATIENCE, Case, Client, Tally, make_cases
from tests.alive import is_alive
from tests.server.process import ServerProcess, children_of, free_port, is_ready, resident_bytes, until
from tests.tiny import cut_layers, write_checkpoint

FLAGS = {
    "minutes": 60.0,
    "clients": 40,
    "attackers": 8,
    "kill-every": 60.0,
    "growth": 0.05,
    "seed": 0,
}
ENGINE: dict[str, Any] = {"dtype": "float32", "deterministic": True, "max_model_len": 512}


PARTS = ("server", "engine")


@dataclass(frozen=True, slots=True)
class Held:
    megabytes: float
    files: float
    threads: float

    def __str__(self) -> str:
        return f"{self.megabytes:.1f} MB, {self.files:.0f} files, {self.threads:.0f} threads"

    def beyond(self, usual: "Held", growth: float) -> list[str]:
        """What has grown by more than this share, or by more than a handful of files and threads."""
        allowed = Held(0, 4, 4)
        names = tuple(field.name for field in fields(self))
        return [
            f"{name} ({getattr(usual, name):.0f} → {getattr(self, name):.0f})"
            for name in names
            if getattr(self, name) > getattr(usual, name) * (1 + growth) + getattr(allowed, name)
        ]

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = Path("/proc") / str(pid)
        files, threads = (len(list((process / name).iterdir())) for name in ("fd", "task"))
        return cls(resident_bytes(pid) / 1e6, files, threads)

    @classmethod
    def usually(cls, seen: "list[Held]") -> "Held":
        """The median of each."""
        return cls(*map(statistics.median, zip(*map(astuple, seen), strict=True)))


class Watch:
    """Of the server and its engine, every half second."""

    def __init__(self, server: ServerProcess) -> None:
        self._pids = dict(zip(PARTS, (server.process.pid, server.children[0]), strict=True))
        self._seen: dict[str, list[Held]] = {part: [] for part in PARTS}

    async def run(self, until_then: float) -> None:
        while time.monotonic() < until_then:
            for part, pid in self._pids.items():
                self._seen[part].append(Held.by(pid))
            await asyncio.sleep(0.5)

    def halves(self) -> dict[str, tuple[Held, Held]]:
        """What was usual in the first half of the time, and in the second."""
        found = {}
        for part, seen in self._seen.items():
            middle = len(seen) // 2
            found[part] = (Held.usually(seen[:middle]), Held.usually(seen[middle:]))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    clients: int
    attackers: int
    seconds: float
    num_cases: int = 300
    num_kills: int = 2
    growth: float = 0.05
    """By how much memory, files and threads of the second half may exceed those of the first."""
    seed: int = 0


@dataclass(slots=True)
class Report:
    tally: Tally
    seconds: float = 0.0
    num_kills: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    held: dict[str, tuple[Held, Held]] = field(default_factory=dict)
    """What was usual in the first half and in the second."""
    harm: Harm = field(default_factory=Harm)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        tally = self.tally
        lines = [
            f"{sum(tally.done.values())} requests in {self.seconds:.0f} s: {dict(tally.done)}",
            f"{tally.num_tokens} tokens compared, 429: {tally.num_429}, {self.num_kills} drafts killed",
            *(f"held by the {part}: {first}; then {second}" for part, (first, second) in self.held.items()),
            *([f"attacks: {dict(self.harm.tried)}"] if self.harm.tried else []),
            f"metrics: {self.metrics}",
            f"{len(self.all_faults)} faults",
            *(f"  {each[:400]}" for each in self.all_faults[:20]),
        ]
        return "\n".join(lines)

    @property
    def all_faults(self) -> list[str]:
        return [*self.faults, *self.tally.faults, *self.harm.faults]

    @property
    def is_perfect(self) -> bool:
        return not self.all_faults and bool(self.tally.done["read"])


@contextlib.contextmanager
def ssd_serve(model: Path, draft: Path, log: Path, *options: str) -> Iterator[ServerProcess]:
    """The command users run, until the block ends; it is then gone, with all it started."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "ssd", "serve", str(model), "--draft", str(draft), "--mode", "ssd"),
        *("--port", str(port), "--device", "cpu", "--dtype", ENGINE["dtype"], "--deterministic"),
        *("--max-model-len", str(ENGINE["max_model_len"]), "--served-model-name", "tiny", *options),
    ]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, text=True)
    server = ServerProcess(process, f"http://127.0.0.1:{port}", log, None)
    try:
        until(lambda: is_ready(server) or process.poll() is not None, seconds=300)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        pids = server.children
        server.end()
        until(lambda: not any(map(is_alive, pids)))


async def kill_drafts(server: ServerProcess, load: Load, report: Report) -> None:
    """At even distances; the next draft is there in between."""
    for _ in range(load.num_kills):
        await asyncio.sleep(load.seconds / (load.num_kills + 1))
        drafts = children_of(server.children[0])
        for pid in drafts:
            os.kill(pid, signal.SIGKILL)
        report.num_kills += bool(drafts)


async def press(server: ServerProcess, cases: Sequence[Case], load: Load) -> Report:
    report = Report(Tally())
    until_then = time.monotonic() + load.seconds
    watch = Watch(server)
    held_seconds = min(60.0, load.seconds / 3)
    aim = Aim(url=server.url, model="tiny", long_prompt="the " * 300, held_seconds=held_seconds)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=load.clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=2 * PATIENCE, limits=limits) as http:
        clients = [
            Client(http, cases, report.tally, random.Random(load.seed * 10_000 + number))
            for number in range(load.clients)
        ]
        started = time.monotonic()
        await asyncio.gather(
            watch.run(until_then),
            kill_drafts(server, load, report),
            *(attack(aim, report.harm, number, until_then) for number in range(load.attackers)),
            *(client.run(until_then) for client in clients),
        )
    report.seconds = time.monotonic() - started
    report.held = watch.halves()
    return report


def settle(server: ServerProcess, load: Load, report: Report) -> None:
    """What must hold once nobody asks for anything any more."""
    try:
        server.until_idle()
    except AssertionError:
        report.faults.append(f"{server.num_at_work} sequences are left")
    names = ("kv_cache_usage_perc", "draft_losses_total", "draft_connects_total", "request_cancelled_total")
    try:
        # The draft reports this in its next STATS.
        until(
            lambda: server.metric("ssd_draft_num_sequences") == server.metric("ssd_draft_kv_usage_perc") == 0
        )
    except AssertionError:
        report.faults.append("the draft holds KV blocks")
    report.metrics = {name: server.metric(f"ssd_{name}") for name in names}
    if report.metrics["kv_cache_usage_perc"]:
        report.faults.append("KV blocks are held")
    if report.num_kills < load.num_kills:
        report.faults.append(f"only {report.num_kills} drafts could be killed")
    for part, (first, second) in report.held.items():
        report.faults += [
            f"the {part} held more in the second half: {each}" for each in second.beyond(first, load.growth)
        ]
    code = server.end()
    if code != 0 or seconds_to_drain(server) > 3:
        report.faults.append(
            f"the server ended with {code} after a drain of {seconds_to_drain(server):.1f} s"
        )


def seconds_to_drain(server: ServerProcess) -> float:
    """By its log. A server that still counted somebody inside would wait for them, for half a minute."""
    times = [
        datetime.fromisoformat(line["time"])
        for line in server.log
        if line["message"].startswith("shutting down") or line["message"] == "Shutting down"
    ]
    return (times[-1] - times[0]).total_seconds()


def run(load: Load, folder: Path) -> Report:
    torch.set_num_threads(1)
    model = write_checkpoint("llama3", folder / "target")
    draft = cut_layers(model, 2, folder / "draft")
    cases = make_cases(model, load.num_cases, seed=load.seed, **ENGINE)
    # Too little room for all of them at once: some have to come again.
    room = ("--max-num-seqs", "16", "--max-queue", str(load.clients // 3))
    with ssd_serve(model, draft, folder / "log", *room) as server:
        report = asyncio.run(press(server, cases, load))
        settle(server, load, report)
    log = [line for line in server.log if line.get("level") in ("error", "critical")]
    report.faults += [f"logged: {line}" for line in log]
    return report


def main() -> int:
    options = parser(__doc__, FLAGS).parse_args()
    seconds = 60 * options.minutes
    load = Load(
        clients=options.clients,
        attackers=options.attackers,
        seconds=seconds,
        num_kills=max(1, round(seconds / options.kill_every)),
        growth=options.growth,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = run(load, Path(folder))
    print(report)
    return 0 if report.is_perfect else 1


if __name__ == "__main__":
    sys.exit(main())
