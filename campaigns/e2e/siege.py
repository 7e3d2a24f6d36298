"""Eight honest clients of a server without a key, alone and beside fifty that mean harm.

    python -m campaigns.e2e.siege --model SMOLLM2 [--minutes 5] [--attackers 50] [--clients 8]

Hostile clients do what hostile.py knows; one only sends long prompts, one at a time.
Honest ones stream short texts. Printed: their errors, p50 and p99 of the time to their first token alone and
under siege, and what server and engine hold. Ends with 1 where an honest client saw an error, p99 is over
three times that without, or memory ends 200 MB over that of the start.
"""

import argparse
import asyncio
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import httpx
import openai

from campaigns.e2e.held import Held, Watch
from campaigns.e2e.hostile import ATTACKS, Aim, Attack, Harm, attack, send_a_long_prompt
from tests.server.process import ServerProcess, free_port, is_ready, until

MODEL = "besieged"
_TOKENS = 24
_ALLOWED_RATIO = 3.0
_ALLOWED_MEGABYTES = 200.0
_LEAST_PRIORITY = 19
_NEXT_TO_NOTHING = 20.0


@dataclass(slots=True)
class Honest:
    """What honest clients saw."""

    first_tokens: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def percentile(self, number: int) -> float:
        return statistics.quantiles(self.first_tokens, n=100)[number - 1]

    def __str__(self) -> str:
        p50, p99 = (1000 * self.percentile(each) for each in (50, 99))
        times = f"first token p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        return f"{len(self.first_tokens)} texts, {times}, {len(self.errors)} errors"


@contextmanager
def serving(model: Path, folder: Path, *options: str) -> Iterator[ServerProcess]:
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "ssd", "serve", str(model), "--port", str(port)]
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*command, "--served-model-name", MODEL, "--device", "cpu", *options],
            stdout=sink,
            stderr=sink,
            text=True,
        )
    server = ServerProcess(process, f"http://127.0.0.1:{port}", log, None)
    try:
        until(lambda: is_ready(server) or process.poll() is not None, seconds=300)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        server.end()


async def ask_on(client: openai.AsyncOpenAI, number: int, seen: Honest, until_then: float) -> None:
    """Short texts one after the other, none of them twice."""
    asked = 0
    while time.monotonic() < until_then:
        asked += 1
        began = time.monotonic()
        try:
            stream = await client.completions.create(
                model=MODEL, prompt=f"{number}.{asked} Once upon a time", max_tokens=_TOKENS, stream=True
            )
            pieces = 0
            async for _piece in stream:
                if not pieces:
                    seen.first_tokens.append(time.monotonic() - began)
                pieces += 1
        except openai.OpenAIError as error:
            seen.errors.append(f"{type(error).__name__}: {error}")


async def observe(server: ServerProcess, watch: Watch, clients: int, seconds: float) -> Honest:
    seen, until_then = Honest(), time.monotonic() + seconds
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:
        await asyncio.gather(
            watch.run(until_then), *(ask_on(client, number, seen, until_then) for number in range(clients))
        )
    return seen


def harass(aim: Aim, attackers: int, seconds: float) -> Harm:
    """All hostile clients, and one more that only sends long prompts."""
    # Theirs are other machines: what they compute themselves is not to slow the server or the honest.
    os.nice(_LEAST_PRIORITY)
    harm, until_then = Harm(), time.monotonic() + seconds
    kinds: list[Mapping[str, Attack]] = [{"S2": send_a_long_prompt}, *[ATTACKS] * attackers]

    async def all_of_them() -> None:
        await asyncio.gather(
            *(attack(aim, harm, kind, f"hostile {n}", until_then) for n, kind in enumerate(kinds))
        )

    asyncio.run(all_of_them())
    return harm


def fill(server: ServerProcess, watch: Watch, long_prompt: str) -> None:
    """Until the KV cache has all the memory that it was promised: it takes it as it is first used."""
    held, number = -math.inf, 0
    while watch.now()["engine"].megabytes > held + _NEXT_TO_NOTHING:
        held = watch.now()["engine"].megabytes
        for _ in range(2):
            number += 1
            body = {"model": MODEL, "prompt": f"{number} {long_prompt}", "max_tokens": 1}
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).raise_for_status()


def besiege(
    server: ServerProcess,
    *,
    seconds: float,
    clients: int,
    attackers: int,
    long_prompt: str,
    held_seconds: float = 60.0,
) -> tuple[list[str], list[str]]:
    """Lines for people, and what should not have been. The server's model goes by the name of MODEL."""
    watch = Watch(server)
    fill(server, watch, long_prompt)
    asyncio.run(observe(server, watch, clients, seconds / 10))  # The first time some things are slow.
    before = watch.now()
    alone = asyncio.run(observe(server, watch, clients, seconds / 3))
    aim = Aim(url=server.url, model=MODEL, long_prompt=long_prompt, held_seconds=held_seconds)
    # A process of their own: beside the honest they would be what these wait for.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        harassing = elsewhere.submit(harass, aim, attackers, seconds)
        under = asyncio.run(observe(server, watch, clients, seconds))
        harm = harassing.result()
    server.until_idle()
    after = watch.now()
    said = [f"alone: {alone}", f"under siege: {under}", f"attacks: {dict(harm.tried)}"]
    said += [f"answers: {dict(sorted(harm.answers.items()))}"]
    said += [
        f"held by the {part}: {held}, then {after[part]}, at most {watch.most_megabytes[part]:.0f} MB"
        for part, held in before.items()
    ]
    return said, [*under.errors, *harm.faults, *_wrong(alone, under, before, after)]


def _wrong(
    alone: Honest, under: Honest, before: Mapping[str, Held], after: Mapping[str, Held]
) -> Iterator[str]:
    ratio = under.percentile(99) / alone.percentile(99)
    if ratio > _ALLOWED_RATIO:
        yield f"p99 of the first token is {ratio:.1f} times that without"
    for part, held in before.items():
        grown = after[part].megabytes - held.megabytes
        if grown > _ALLOWED_MEGABYTES:
            yield f"the {part} holds {grown:.0f} MB more"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--attackers", type=int, default=50)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("options", nargs="*", help="of `ssd serve`, after --")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="siege-") as folder,
        serving(given.model, Path(folder), *given.options) as server,
    ):
        said, wrong = besiege(
            server,
            seconds=60 * given.minutes,
            clients=given.clients,
            attackers=given.attackers,
            long_prompt="word " * 4000,
        )
    print("\n".join([*said, f"{len(wrong)} faults", *(f"  {each[:300]}" for each in wrong[:20])]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
