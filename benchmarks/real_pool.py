"""Two vLLM servers and one of ours on one pool of three drafts, which are killed, drained and upgraded.

    python -m benchmarks.real_pool --model SMOLLM2_FOLDER --minutes 10

Each server is a tenant with a key and a weight of its own, and has clients that stream without a pause,
one greedy, the next with a seed. A fourth tenant floods all drafts and lies to them (hostile_tenant.py).
Every text is compared with the one that the same server gave while there was no draft at all (ours: without
one in its settings). Rows are counted by the drafts themselves, over windows in which every server asked for
more rows than it got. Ends with 1 if a text differs, a request was lost, a server had no hit, a draft ended
by itself, the servers' shares among themselves are off by more than a tenth, or the hostile tenant got more
than its share.

Needs vLLM beside this package. `--model` must be a folder. By default two drafts share core 1, and the third
runs on core 0 with the servers, which have lower priority: a round takes a few steps of a draft, as where
drafts are small beside their targets. Guesses from a text's own words are off: a hit is a draft's.
"""

import os
import random
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.flags import parser
from benchmarks.records import Record
from ssd.draft.protocol.sockets import make_keys, make_tenant_keys
from tests.network.programs import Program
from tests.server.process import ServerProcess, free_port, serving, until
from tests.vllm.served import Served, has_draft, start, until_healthy
from tests.vllm.streams import Seen, Streams, Undisturbed

FLAGS: dict[str, object] = {
    "model": Path,
    "minutes": 10.0,
    "tokens": 48,
    "clients": 3,
    "frames": 50.0,
    "width": 12,
    "window": 10.0,
    "cores": "0",
    "draft-cores": "1,1,0",
    "nice": 5,
    "seed": 0,
    "record": None,
}
HOW = {"killed": signal.SIGKILL, "drained": signal.SIGTERM, "upgraded": signal.SIGTERM}
SERVERS = {"ours": 1, "vllm-one": 1, "vllm-two": 2}
HOSTILE = "hostile"
WEIGHTS = {**SERVERS, HOSTILE: 1}
DRAFTS = ("first", "second", "third")
MOST_OFF = 0.1
_WANTING = 0.95
"""Share of a window's steps in which a tenant would have had more: then it wants more than its share."""
_TELLS_EVERY = "0.5"
_DRAIN_SECONDS = 10.0
"""Until a draft that drains is ended, if it still has sequences of a server."""


class Pool:
    """Drafts at addresses of their own; what each that ever ran has told is kept."""

    def __init__(
        self, folder: Path, model: Path, *flags: str, cores: Mapping[str, str] | None = None
    ) -> None:
        """`cores`: that of each draft; None: any."""
        self._keys, self._model, self._flags, self._cores = folder, model, flags, cores or {}
        make_keys(folder)
        for tenant in WEIGHTS:
            make_tenant_keys(folder, tenant)
        self._addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in DRAFTS}
        self._running: dict[str, Program] = {}
        self.fallen: set[str] = set()
        """Drafts that ended by themselves, in words."""
        self.told: list[list[dict[str, Any]]] = []

    @property
    def addresses(self) -> str:
        return ",".join(self._addresses.values())

    @property
    def now(self) -> list[list[dict[str, Any]]]:
        """What those say that run now."""
        return [program.lines for program in self._running.values()]

    def keys_of(self, tenant: str) -> str:
        return str(self._keys / tenant)

    def start(self, name: str, *flags: str) -> None:
        weights = ",".join(f"{tenant}={weight}" for tenant, weight in WEIGHTS.items())
        what = ["--model", str(self._model), "--name", "pool", "--listen", self._addresses[name]]
        what += ["--keys", str(self._keys / "draft"), "--weights", weights, "--lifeline"]
        what += ["--cores", self._cores[name]] if self._cores else []
        telling = ["tests.e2e.telling_draft", ",".join(WEIGHTS), _TELLS_EVERY, "draft"]
        program = Program(None, "", [*telling, *what, *self._flags, *flags])
        self._running[name] = program
        self.told.append(program.lines)
        program.until_it_speaks()

    def strike(self, name: str, how: str) -> None:
        self.look()
        program = self._running[name]
        if how == "drained":
            program.process.send_signal(signal.SIGUSR1)
            ends = time.monotonic() + _DRAIN_SECONDS
            while program.lines[-1]["sequences"].keys() & SERVERS.keys() and time.monotonic() < ends:
                time.sleep(0.1)
        program.process.send_signal(HOW[how])
        program.process.wait(60)

    def look(self) -> None:
        for name, program in self._running.items():
            code = program.process.poll()
            if code is not None:
                self.fallen.add(f"the draft {name}, process {program.process.pid}, ended with code {code}")

    def close(self) -> None:
        for program in self._running.values():
            program.end()


@contextmanager
def started(place: Path, model: Path, pool: Pool, tenant: str, cores: str) -> Iterator[Served]:
    """A vLLM that looks for drafts which need not be there; it is not up yet."""
    keys = ("--draft-keys", pool.keys_of(tenant))
    server = start(place / tenant, model, pool.addresses, *keys, "--cores", cores, "--backup", "none")
    try:
        yield server
    finally:
        server.end()


@contextmanager
def flooding(pool: Pool, frames: float) -> Iterator[Program]:
    words = ["tests.e2e.hostile_tenant", pool.addresses, "--keys", pool.keys_of(HOSTILE)]
    program = Program(None, "", [*words, "--frames", str(frames)])
    try:
        program.until_it_speaks()
        yield program
    finally:
        program.end()


def be_nice(server: ServerProcess, by: int) -> None:
    """With all its threads, which Linux schedules one by one."""
    for pid in (server.process.pid, *server.children):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), os.getpriority(os.PRIO_PROCESS, 0) + by)


def our_settings(options: Namespace) -> dict[str, Any]:
    cores = tuple(map(int, options.cores.split(",")))
    return {
        "server": {"served_model_name": "served"},
        "backup": "none",
        "cores": cores,
        "max_num_seqs": 8,
        "max_model_len": 1024,
        "kv_cache_bytes": 400 << 20,
    }


def strike_on(pool: Pool, seconds: float, chance: random.Random, say: Callable[[str], None]) -> Counter[str]:
    """At random moments, one draft after another; how often each happened."""
    ends, done = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < ends:
        time.sleep(chance.uniform(5.0, 25.0))
        name, how = chance.choice(DRAFTS), chance.choice([*HOW])
        pool.strike(name, how)
        time.sleep(chance.uniform(0.0, 3.0))
        pool.start(name, *(["--width", "8"] if how == "upgraded" else []))
        done[how] += 1
        say(f"{how} {name}")
    return done


def windows(
    lines: Sequence[dict[str, Any]], seconds: float, names: Collection[str], *, beside: Collection[str] = ()
) -> Iterator[dict[str, int]]:
    """Rows by tenant, of each window in which each of `names` wanted more. `beside`: further tenants."""
    first = lines[0]
    for line in lines:
        if line["at"] - first["at"] < seconds:
            continue
        turns = line["turns"] - first["turns"]
        wanting = [line["wanting"][name] - first["wanting"][name] for name in names]
        if min(wanting) >= _WANTING * turns:
            yield {name: line["rows"][name] - first["rows"][name] for name in (*names, *beside)}
        first = line


def shares_of(rows: Mapping[str, int]) -> dict[str, float]:
    return {name: count / sum(rows.values()) for name, count in rows.items()}


def worst(shares: Sequence[Mapping[str, float]], weights: Mapping[str, float]) -> float:
    """The largest error of a share, as a part of what it should be."""
    total = sum(weights.values())
    return max(abs(each[name] * total / weights[name] - 1) for each in shares for name in weights)


def shares_found(told: Sequence[Sequence[dict[str, Any]]], window: float) -> dict[str, Any]:
    """Of the servers among themselves, over all windows of all drafts; how far off a single window was; and
    of all rows the share of the hostile tenant."""
    found = [each for lines in told if lines for each in windows(lines, window, SERVERS, beside=[HOSTILE])]
    if not found:
        return {"windows": 0}
    rows = {name: sum(each[name] for each in found) for name in WEIGHTS}
    shares = among_servers(rows)
    return {
        "windows": len(found),
        "rows": rows,
        "shares": {name: round(share, 4) for name, share in shares.items()},
        "off": round(worst([shares], SERVERS), 4),
        "off_in_one_window": round(worst([among_servers(each) for each in found], SERVERS), 4),
        "hostile_share": round(shares_of(rows)[HOSTILE], 4),
    }


def among_servers(rows: Mapping[str, int]) -> dict[str, float]:
    return shares_of({name: rows[name] for name in SERVERS})


def judged(
    expected: Mapping[str, Undisturbed], seen: Mapping[str, Seen], hits: Mapping[str, float]
) -> Iterator[str]:
    for name, texts in seen.items():
        yield from (f"{name}: {each}" for each in (*texts.lost, *expected[name].changed(texts)))
        if not texts.texts:
            yield f"{name} gave no text"
        if not hits[name]:
            yield f"{name} had no hit"


def wrong_shares(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["windows"]:
        yield "in no window did every server have work beyond its share"
        return
    if found["off"] > MOST_OFF:
        yield f"a share is off by {found['off']:.0%}"
    due = WEIGHTS[HOSTILE] / sum(WEIGHTS.values())
    if not 0 < found["hostile_share"] <= due * (1 + MOST_OFF):
        yield f"the hostile tenant had {found['hostile_share']:.0%} of all rows, and {due:.0%} are its share"


def run(options: Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    model, ours = options.model, our_settings(options)
    asked = {"num_tokens": options.tokens, "clients": options.clients}
    said = ["--width", str(options.width), "--precision", "int8", "--kv-cache-bytes", str(400 << 20)]
    cores = dict(zip(DRAFTS, options.draft_cores.split(","), strict=True))
    pool = Pool(folder / "keys", model, *said, cores=cores)
    with ExitStack() as stack:
        stack.callback(pool.close)
        servers: dict[str, ServerProcess] = {}
        vllms = {
            name: stack.enter_context(started(folder, model, pool, name, options.cores))
            for name in SERVERS
            if name != "ours"
        }
        with serving(model, folder / "plain.log", **ours) as plain:
            expected = {"ours": Undisturbed.of(plain, **asked)}
        for name, server in vllms.items():
            until_healthy(server)
            expected[name] = Undisturbed.of(server, **asked)
            servers[name] = server
            say(f"{name}: texts without a draft")
        for name in DRAFTS:
            pool.start(name)
        draft = {"model": pool.addresses, "keys": pool.keys_of("ours")}
        servers["ours"] = stack.enter_context(
            serving(model, folder / "ours.log", mode="ssd", draft=draft, **ours)
        )
        for each in servers.values():
            be_nice(each, options.nice)
        for server in vllms.values():
            until(lambda server=server: has_draft(server), seconds=120)  # type: ignore[misc]
        say("all have drafts")
        hostile = stack.enter_context(flooding(pool, options.frames))
        streams = {name: Streams(server, **asked) for name, server in servers.items()}

        def tell(words: str) -> None:
            hits = {name: server.counted("ssd_spec_hits_total") for name, server in servers.items()}
            said = [lines[-1]["sequences"] for lines in pool.now]
            say(f"{words}; hits {hits}, sequences {said}, {shares_found(pool.told, options.window)}")

        try:
            strikes = strike_on(pool, 60 * options.minutes, random.Random(options.seed), tell)
        finally:
            seen = {name: each.stop() for name, each in streams.items()}
        hits = {name: server.counted("ssd_spec_hits_total") for name, server in servers.items()}
        rounds = {name: server.counted("ssd_rounds_total") for name, server in servers.items()}
        pool.look()
        if hostile.process.poll() is not None:
            pool.fallen.add("the hostile tenant ended")
    found = shares_found(pool.told, options.window)
    return {
        "strikes": strikes,
        "texts": {name: len(each.texts) for name, each in seen.items()},
        "equal": {name: len(each.texts) - len(expected[name].changed(each)) for name, each in seen.items()},
        "hits": hits,
        "rounds": rounds,
        **found,
        "hostile": hostile.lines[-1],
        "wrong": [*judged(expected, seen, hits), *wrong_shares(found), *pool.fallen],
    }


def main() -> int:
    options = parser(__doc__, FLAGS).parse_args()
    # When this program is ended, its servers end too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()

    def say(words: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:.0f} s: {words}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="pool-") as folder:
        found = run(options, Path(folder), say)
    if options.record is not None:
        settings = {name: each for name, each in vars(options).items() if name not in ("record", "model")}
        settings |= {"model": options.model.name, "weights": WEIGHTS}
        Record(Path(options.record), settings).add("real pool", found)
    sys.stdout.write(f"{found}\n")
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
