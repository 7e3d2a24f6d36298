"""Hostile clients of the soak, and what a server may answer them.

Knows HTTP as bytes on a socket: an honest library would not send half a head. A server may refuse them, close
on them or be slow to them. It may not fail: an answer of 500 and above that does not say "later" is a fault,
and so is a whole request that nobody answers.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 120.0
"""Seconds in which a whole request is answered, if only by a refusal."""
_LATER = {429, 503}
_HEAD = (
    "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    "Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
)
_CHUNK = 1 << 16


@dataclass(slots=True)
class Harm:
    """What was tried, and what went wrong with it."""

    tried: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The server, as hostile clients see it."""

    url: str
    model: str
    long_prompt: str
    """As many tokens as the server takes, or nearly."""
    held_seconds: float
    """How long connections are held that give the server nothing to do."""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        # So little is read ahead that whoever does not read is soon noticed.
        return await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 12)

    async def post(self, path: str, body: bytes) -> int:
        """The status; 0: it hung up."""
        reader, writer = await self.connect()
        try:
            writer.write(_HEAD.format(path=path, size=len(body)).encode())
            for start in range(0, len(body), _CHUNK):
                writer.write(body[start : start + _CHUNK])
                await writer.drain()
            line = await asyncio.wait_for(reader.readline(), PATIENCE)
            return int(line.split()[1]) if line else 0
        except ConnectionError:
            return 0
        finally:
            await _hang_up(writer)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


Attack = Callable[[Aim, random.Random], Awaitable[int]]
"""Once; the status, or 0 where none was waited for or given."""


def _ask(aim: Aim, **more: Any) -> bytes:
    return json.dumps({"model": aim.model, "prompt": "Say", "max_tokens": 4, **more}).encode()


async def bomb_with_a_grammar(aim: Aim, chance: random.Random) -> int:
    """A schema that takes minutes and gigabytes; each another, so that none is remembered."""
    factors = chance.sample((97, 89, 83, 79, 73, 71, 67), 4)
    large = {"type": "integer", "multipleOf": chance.randrange(100_000_007, 200_000_000, 2)}
    many = {"allOf": [{"type": "integer", "multipleOf": factor} for factor in factors]}
    return await aim.post(
        "/v1/completions", _ask(aim, structured_outputs={"json": chance.choice((large, many))})
    )


async def read_nothing(aim: Aim, chance: random.Random) -> int:
    """A long stream of many choices that its client does not read."""
    _reader, writer = await aim.connect()
    body = _ask(aim, n=16, logprobs=20, max_tokens=32, stream=True, ignore_eos=True)
    try:
        writer.write(_HEAD.format(path="/v1/completions", size=len(body)).encode() + body)
        await writer.drain()
        await asyncio.sleep(aim.held_seconds * chance.uniform(0.5, 1.0))
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return 0


async def read_a_little(aim: Aim, chance: random.Random) -> int:
    """A large body, mostly spaces, for a long answer that is read as slowly as the server bears."""
    reader, writer = await aim.connect()
    body = _ask(aim, n=4, logprobs=20, max_tokens=32, stream=True, ignore_eos=True)
    body += b" " * chance.randrange(1 << 20, 7 << 20)
    try:
        writer.write(_HEAD.format(path="/v1/completions", size=len(body)).encode())
        for start in range(0, len(body), _CHUNK):
            writer.write(body[start : start + _CHUNK])
            await writer.drain()
        end = time.monotonic() + aim.held_seconds
        while time.monotonic() < end and await reader.read(1 << 11):
            await asyncio.sleep(1.0)
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return 0


async def ask_for_very_many(aim: Aim, chance: random.Random) -> int:
    """Small bodies that ask for thousands of texts, or millions of scores."""
    texts: dict[str, Any] = {"prompt": [f"{chance.random()} Say"] * 64, "n": 16, "max_tokens": 64}
    scores: dict[str, Any] = {"prompt": aim.long_prompt, "prompt_logprobs": 20, "n": 16}
    return await aim.post("/v1/completions", _ask(aim, **chance.choice((texts, scores))))


async def send_half_a_head(aim: Aim, chance: random.Random) -> int:
    """A connection that says too little to be refused."""
    return await _hold(aim, chance, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: ")


async def send_half_a_body(aim: Aim, chance: random.Random) -> int:
    """Megabytes to an address that wants none, and no end of them."""
    head = _HEAD.format(path=chance.choice(("/health", "/v1/completions")), size=8 << 20).encode()
    return await _hold(aim, chance, head + b"x" * (7 << 20))


async def _hold(aim: Aim, chance: random.Random, sent: bytes) -> int:
    reader, writer = await aim.connect()
    try:
        for start in range(0, len(sent), _CHUNK):
            writer.write(sent[start : start + _CHUNK])
            await asyncio.wait_for(writer.drain(), aim.held_seconds)
        # Until the server has enough of it.
        await asyncio.wait_for(reader.read(1), aim.held_seconds * chance.uniform(0.5, 1.0))
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return 0


async def send_a_long_text(aim: Aim, chance: random.Random) -> int:
    """Megabytes that are too many tokens for any model."""
    word = chance.choice(("a ", "x", "naïve ", "0"))
    return await aim.post("/v1/completions", _ask(aim, prompt=word * ((6 << 20) // len(word.encode()))))


async def send_many_numbers(aim: Aim, chance: random.Random) -> int:
    """A prompt of millions of token ids."""
    ids = b"[" + b"1," * 3_000_000 + b"1]"
    return await aim.post("/v1/completions", b'{"model": "%s", "prompt": %s}' % (aim.model.encode(), ids))


async def send_a_long_prompt(aim: Aim, chance: random.Random) -> int:
    """All that the model can read, never twice the same."""
    return await aim.post("/v1/completions", _ask(aim, prompt=f"{chance.random()} {aim.long_prompt}"))


ATTACKS: tuple[Attack, ...] = (
    bomb_with_a_grammar,
    read_nothing,
    read_a_little,
    ask_for_very_many,
    send_half_a_head,
    send_half_a_body,
    send_a_long_text,
    send_many_numbers,
    send_a_long_prompt,
)


async def attack(aim: Aim, harm: Harm, number: int, until: float) -> None:
    """One attack after the other, until then."""
    chance = random.Random(f"hostile {number}")
    while time.monotonic() < until:
        tried = chance.choice(ATTACKS)
        name = tried.__name__
        harm.tried[name] += 1
        try:
            status = await tried(aim, chance)
        except TimeoutError:
            harm.faults.append(f"{name}: nobody answered")
            continue
        except ConnectionError:
            status = 0  # No connection to be had: there is a cap.
        if status >= 500 and status not in _LATER:
            harm.faults.append(f"{name}: status {status}")
        # A refusal that costs nothing would only measure how fast this side asks.
        await asyncio.sleep(chance.uniform(0.05, 0.5))
