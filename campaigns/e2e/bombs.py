"""What hostile requests cost honest ones: grammars whose masks are dear, and bodies of many small things.

    python -m campaigns.e2e.bombs --model MODEL [--tiny] [--draft MODEL] [--seconds 10] [--kind grammars]

Phases without and with hostile clients take turns on one real server. For each kind it prints the p50 and p99
of honest requests in both, their ratio, and what /livez said and how long it took. No two bombs are the same,
so none is refused because it is known. `--tiny` takes of the model its tokenizer only: masks cost what they
would, while forwards take milliseconds.
"""

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from transformers import AutoModelForCausalLM

from ssd.models.checkpoint import open_checkpoint
from tests.server.process import ServerProcess, serving
from tests.tiny import CONFIGS

Body = dict[str, Any] | bytes
MOST_RATIO = 3.0
"""Honest p99 beside bombs, of p99 without."""
_HONEST: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True}
_NUM_HONEST = 3


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    path: str
    bodies: Callable[[], Iterator[Body]]
    num_clients: int


@dataclass(slots=True)
class Seen:
    """Of all phases of one sort."""

    seconds: list[float] = field(default_factory=list)
    livez_seconds: list[float] = field(default_factory=list)
    livez: Counter[int] = field(default_factory=Counter)
    honest: Counter[int] = field(default_factory=Counter)
    hostile: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        p50, p99 = np.quantile(self.seconds, (0.5, 0.99))
        return (
            f"{len(self.seconds)} honest {dict(self.honest)}, p50 {p50:.3f} s, p99 {p99:.3f} s; /livez "
            f"{dict(self.livez)}, at most {max(self.livez_seconds):.2f} s; hostile {dict(self.hostile)}"
        )


def grammar(num_rules: int, form: str, number: int = 0) -> str:
    """Lark of many rules that fit the same texts; `number` makes it differ from others."""
    rules = [f"n{i}: /[a-z ]{{1,{i + 2}}}/" for i in range(num_rules)]
    either = " | ".join(f"n{i}" for i in range(num_rules))
    return "\n".join([form.format(either), *rules, f"// {number}"])


def grammars() -> Iterator[Body]:
    """Some have more rules than any mask may look at, some just fewer; all ask for many texts at once."""
    forms = ("start: {}", 'start: (({}) ".")*', "start: x\nx: x x | {}", 'start: "once" ({})')
    for number, (form, num_rules) in enumerate(itertools.cycle(itertools.product(forms, (900, 300, 100)))):
        lark = grammar(num_rules, form, number)
        yield {"prompt": "x", "n": 16, "max_tokens": 40, "structured_outputs": {"grammar": lark}}


def calls() -> Iterator[Body]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call] * 60_000}
    while True:
        yield json.dumps({"messages": [{"role": "user", "content": "x"}, message]}).encode()


def parts() -> Iterator[Body]:
    content = [{"type": "text", "text": ""}] * 199_000
    while True:
        yield json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


KINDS = (
    Kind("grammars", "/v1/completions", grammars, num_clients=2),
    Kind("calls", "/v1/chat/completions", calls, num_clients=4),
    Kind("parts", "/v1/chat/completions", parts, num_clients=4),
)


def phase(server: ServerProcess, seen: Seen, seconds: float, kind: Kind | None) -> None:
    """However short it is, everyone asks once at least."""
    over = threading.Event()
    tasks: list[Callable[[], None]] = [lambda: _watch(server.url, over, seen)]
    tasks += [lambda: _ask(server.url, over, seen)] * _NUM_HONEST
    if kind is not None:
        bodies = kind.bodies()
        tasks += [lambda: _attack(server.url, over, kind, bodies, seen)] * kind.num_clients
    threads = [threading.Thread(target=each) for each in tasks]
    for thread in threads:
        thread.start()
    over.wait(seconds)
    over.set()
    for thread in threads:
        thread.join()


def _ask(url: str, over: threading.Event, seen: Seen) -> None:
    with httpx.Client(base_url=url, timeout=300) as client:
        while True:
            began = time.monotonic()
            status = client.post("/v1/completions", json=_HONEST).status_code
            seen.seconds.append(time.monotonic() - began)
            seen.honest[status] += 1
            if over.is_set():
                return


def _attack(url: str, over: threading.Event, kind: Kind, bodies: Iterator[Body], seen: Seen) -> None:
    with httpx.Client(base_url=url, timeout=300) as client:
        while True:
            with _TURN:  # A generator is not for two threads at once.
                body = next(bodies)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = client.post(kind.path, content=content, headers={"Content-Type": "application/json"})
            seen.hostile[answer.status_code] += 1
            if over.is_set():
                return


_TURN = threading.Lock()


def _watch(url: str, over: threading.Event, seen: Seen) -> None:
    with httpx.Client(base_url=url, timeout=300) as client:
        while True:
            began = time.monotonic()
            seen.livez[client.get("/livez").status_code] += 1
            seen.livez_seconds.append(time.monotonic() - began)
            if over.wait(0.1):
                return


def compare(server: ServerProcess, kind: Kind, *, seconds: float, rounds: int = 2) -> tuple[Seen, Seen]:
    """Phases without and with hostile clients, in turns."""
    alone, beside = Seen(), Seen()
    for _ in range(rounds):
        print(f"{kind.name} …", file=sys.stderr, flush=True)
        phase(server, alone, seconds, None)
        phase(server, beside, seconds, kind)
    return alone, beside


def faults(alone: Seen, beside: Seen) -> list[str]:
    found = []
    ratio = np.quantile(beside.seconds, 0.99) / np.quantile(alone.seconds, 0.99)
    if ratio > MOST_RATIO:
        found.append(f"honest p99 is {ratio:.1f} times as long")
    if set(beside.livez) != {200}:
        found.append(f"/livez said {dict(beside.livez)}")
    if set(beside.honest) != {200}:
        found.append(f"honest requests got {dict(beside.honest)}")
    return found


def _model(given: argparse.Namespace, folder: Path) -> Path:
    if not given.tiny:
        return Path(given.model)
    tokenizer = open_checkpoint(given.model).tokenizer()
    config = CONFIGS["llama3"]()
    config.vocab_size = len(tokenizer)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    return folder / "tiny"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--draft")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kind", choices=("all", *(each.name for each in KINDS)), default="all")
    given = parser.parse_args()
    engine = {"draft": given.draft, "mode": "ssd"} if given.draft else {}
    is_clean = True
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(_model(given, Path(folder)), Path(folder) / "log", deterministic=False, **engine) as server,
    ):
        phase(server, Seen(), 2.0, None)  # The first requests of a server are slow.
        for kind in KINDS:
            if given.kind in ("all", kind.name):
                alone, beside = compare(server, kind, seconds=given.seconds)
                found = faults(alone, beside)
                is_clean &= not found
                ratios = np.quantile(beside.seconds, (0.5, 0.99)) / np.quantile(alone.seconds, (0.5, 0.99))
                print(f"{kind.name}: p50 {ratios[0]:.2f} times, p99 {ratios[1]:.2f} times")
                print(f"  alone:  {alone}\n  beside: {beside}\n  faults: {found or 'none'}", flush=True)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
