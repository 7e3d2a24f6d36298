"""Four targets on one draft: whether rows stand as weights do, and whether a quiet one pays for a flood.

    python -m benchmarks.sharing [--seconds 30] [--verify 10] [--step 2] [--record runs/sharing.jsonl]

Real processes, TCP with keys of their own, real engines and the real service; a rule and a sleep stand for
the models. Weights are 1:1:2:4. One tenant floods: many texts that end soon. First the quiet one is alone,
then the others come; at the end the flood is killed. Each part is a line of JSON in --record. Times in
milliseconds. --simulated: the same service and clients in one thread, whose time is counted in steps of 2 ms
(tests/draft/crowd.py), for machines on which a sleep of 2 ms takes longer.
"""

import json
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.flags import parser
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.protocol.sockets import make_keys, make_tenant_keys
from tests.draft.crowd import STEP, Crowd
from tests.network.decoding import Target
from tests.network.programs import Program

FLAGS: dict[str, object] = {
    "seconds": 30.0,
    "verify": 10.0,
    "step": 2.0,
    "width": 32,
    "window": 1.0,
    "simulated": False,
    "record": "runs/sharing.jsonl",
}
WEIGHTS = {"quiet": 1, "flood": 1, "usual": 2, "large": 4}
BATCHES = {"quiet": 2, "flood": 24, "usual": 8, "large": 8}
TOKENS = {"flood": 20}
"""Of a text; of others as many as a text has."""
_WANTING = 0.95
"""Share of a window's steps in which a tenant would have had more: then it wants more than its share."""

P = TypeVar("P", bound=Program)


class Stage:
    def __init__(self, folder: Path, options: Any) -> None:
        self._folder, self._options = folder, options
        make_keys(folder)
        for name in WEIGHTS:
            make_tenant_keys(folder, name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.programs: list[Program] = []
        said = ",".join(f"{name}={weight}" for name, weight in WEIGHTS.items())
        flags = ["--keys", str(folder / "draft"), "--weights", said, "--step", str(options.step / 1e3)]
        flags += ["--width", str(options.width), "--slots", "128", "--chunk", "128", "--says", "0.1"]
        self.draft = self._started(Program(None, "", ["tests.network.draft", self._address, *flags]))

    def target(self, name: str) -> Target:
        flags = ["--keys", str(self._folder / name), "--verify", str(self._options.verify / 1e3)]
        flags += ["--batch", str(BATCHES[name]), "--max-tokens", str(TOKENS.get(name, 400))]
        arguments = ["tests.network.target", self._address, *flags, "--timeout", "10"]
        return self._started(Target(None, "", arguments))

    def _started(self, program: P) -> P:
        self.programs.append(program)
        program.until_it_speaks()
        return program


@contextmanager
def stage(options: Any) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        made = Stage(Path(folder) / "keys", options)
        try:
            yield made
        finally:
            for program in made.programs:
                program.end()


class Watch:
    """What targets do from here on."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self._since = {name: len(each.lines) - 1 for name, each in targets.items()}

    def hits(self) -> dict[str, float]:
        return {name: self._rate(each, self._since[name]) for name, each in self._targets.items()}

    def _rate(self, target: Target, since: int) -> float:
        first, last = target.lines[since], target.lines[-1]
        if last["wrong"]:
            raise RuntimeError("a token is wrong")
        rate: float = (last["hits"] - first["hits"]) / max(1, last["rounds"] - first["rounds"])
        return rate


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


def worst(shares: Sequence[Mapping[str, float]], weights: Mapping[str, float] = WEIGHTS) -> float:
    """The largest error of a share, as a part of what it should be."""
    total = sum(weights.values())
    return max(abs(each[name] * total / weights[name] - 1) for each in shares for name in weights)


def alone(staged: Stage, targets: dict[str, Target], seconds: float) -> dict[str, Any]:
    targets["quiet"] = staged.target("quiet")
    time.sleep(2.0)
    watch = Watch(targets)
    time.sleep(seconds)
    return {"part": "quiet alone", "hits": watch.hits()}


def together(staged: Stage, targets: dict[str, Target], seconds: float, window: float) -> dict[str, Any]:
    targets |= {name: staged.target(name) for name in WEIGHTS if name not in targets}
    time.sleep(3.0)
    watch, since = Watch(targets), len(staged.draft.lines) - 1
    time.sleep(seconds)
    found = [shares_of(each) for each in windows(staged.draft.lines[since:], window, WEIGHTS)]
    shares = {name: sum(each[name] for each in found) / max(1, len(found)) for name in WEIGHTS}
    error = worst(found) if found else None
    return {"part": "all", "windows": len(found), "shares": shares, "worst": error, "hits": watch.hits()}


def bereaved(staged: Stage, targets: dict[str, Target], seconds: float) -> dict[str, Any]:
    targets.pop("flood").process.send_signal(signal.SIGKILL)
    watch, killed, said = Watch(targets), time.monotonic(), staged.draft.lines
    while said[-1]["sequences"].get("flood") or said[-1]["at"] < killed:
        time.sleep(0.02)
    gone = time.monotonic() - killed
    time.sleep(seconds)
    return {"part": "flood killed", "gone after": gone, "hits": watch.hits()}


def parts(staged: Stage, seconds: float, window: float) -> Iterator[dict[str, Any]]:
    targets: dict[str, Target] = {}
    yield alone(staged, targets, seconds)
    yield together(staged, targets, seconds, window)
    yield bereaved(staged, targets, seconds)


def simulated_parts(seconds: float, window: float, width: int) -> Iterator[dict[str, Any]]:
    ticks = round(seconds / STEP)
    crowd = Crowd(WEIGHTS, width=width)

    def hits_of(action: Callable[[], None]) -> dict[str, float]:
        before = {name: Counter(each.known) for name, each in crowd.targets.items()}
        action()
        seen = {name: each.known - before[name] for name, each in crowd.targets.items()}
        return {name: each[Knowledge.HIT] / max(1, sum(each.values())) for name, each in seen.items()}

    crowd.add("quiet", BATCHES["quiet"])
    crowd.run(50)
    yield {"part": "quiet alone", "hits": hits_of(lambda: crowd.run(ticks))}
    for name in WEIGHTS:
        if name != "quiet":
            crowd.add(name, BATCHES[name], max_tokens=TOKENS.get(name, 400))
    crowd.run(50)
    crowd.wanting.clear()
    crowd.rows.clear()
    rates = hits_of(lambda: crowd.run(ticks))
    found = [crowd.shares(*each) for each in crowd.windows_of_want(round(window / STEP))]
    shares = {name: sum(each[name] for each in found) / max(1, len(found)) for name in WEIGHTS}
    error = worst(found) if found else None
    yield {"part": "all", "windows": len(found), "shares": shares, "worst": error, "hits": rates}
    crowd.kill("flood")
    num_ticks = 0
    while any(each.tenant == "flood" for each in crowd.scheduler._sessions.values()):
        crowd.run(1)
        num_ticks += 1
    rates = hits_of(lambda: crowd.run(ticks))
    yield {"part": "flood killed", "gone after": num_ticks * STEP, "hits": rates}


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    record = Path(options.record)
    record.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack, record.open("a") as file:
        if options.simulated:
            found = simulated_parts(options.seconds, options.window, options.width)
        else:
            found = parts(stack.enter_context(stage(options)), options.seconds, options.window)
        for part in found:
            said = json.dumps({**part, "seconds": options.seconds, "simulated": options.simulated})
            print(said, flush=True)
            file.write(said + "\n")


if __name__ == "__main__":
    main()
