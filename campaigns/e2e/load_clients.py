"""Clients of a server under load: they read, dawdle, leave, or ask for everything at once.

Knows HTTP, server-sent events and the answers that were settled beforehand. Whatever is not as it should be
is a fault in the tally.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import httpx

from campaigns.e2e.load_requests import Case

Manner = Literal["read", "dawdle", "leave", "vanish", "whole"]
WEIGHTS = (60, 8, 14, 6, 12)
PATIENCE = 120.0
"""Seconds after which a request counts as stuck."""


@dataclass(slots=True)
class Tally:
    done: Counter[Manner] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_429: int = 0
    num_tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)


class _BusyError(Exception):
    """The server has no room now."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Client:
    def __init__(
        self, http: httpx.AsyncClient, cases: Sequence[Case], tally: Tally, chance: random.Random
    ) -> None:
        self._http, self._cases, self._tally, self._chance = http, cases, tally, chance

    async def run(self, until: float) -> None:
        """One request after the other, until then."""
        while time.monotonic() < until:
            case = self._chance.choice(self._cases)
            manner: Manner = self._chance.choices(get_args(Manner), WEIGHTS)[0]
            try:
                await asyncio.wait_for(self._ask(case, manner), PATIENCE)
                self._tally.done[manner] += 1
            except _BusyError as busy:
                self._tally.num_429 += 1
                await asyncio.sleep(busy.seconds * self._chance.uniform(0.5, 1.0))
            except TimeoutError:
                self._tally.faults.append(f"stuck: {manner} {case.body}")
            except httpx.HTTPError as error:
                self._tally.faults.append(f"{error!r}: {manner} {case.body}")

    async def _ask(self, case: Case, manner: Manner) -> None:
        if manner == "whole":
            response = await self._http.post(case.path, json=case.body)
            _check_status(response, response.content)
            self._compare(case, response.json()["choices"], response.json()["usage"])
        elif manner == "vanish":
            await self._vanish(case)
        else:
            await self._stream(case, manner)

    async def _vanish(self, case: Case) -> None:
        """Gone before, or just after, anything came."""
        try:
            await asyncio.wait_for(self._http.post(case.path, json=case.body), self._chance.uniform(0, 0.3))
        except TimeoutError:
            return

    async def _stream(self, case: Case, manner: Manner) -> None:
        body = {**case.body, "stream": True, "stream_options": {"include_usage": True}}
        started = time.monotonic()
        times: list[float] = []
        choices = [{"index": index, "text": "", "finish_reason": None} for index in range(len(case.expected))]
        usage: dict[str, Any] = {}
        num_wanted = self._chance.randint(1, 10) if manner == "leave" else None
        async with self._http.stream("POST", case.path, json=body) as response:
            if response.status_code != 200:
                _check_status(response, await response.aread())
            async for event in events_of(response):
                times.append(time.monotonic())
                _grow(choices, event)
                usage = event.get("usage") or usage
                if len(times) == num_wanted:
                    return
                if manner == "dawdle":
                    await asyncio.sleep(self._chance.uniform(0, 0.2))
        self._compare(case, choices, usage)
        if manner == "read" and times:
            self._note_times(case, started, times)

    def _note_times(self, case: Case, started: float, times: list[float]) -> None:
        self._tally.first_token.append(times[0] - started)
        if case.is_alone and case.num_tokens > 1:
            # The last event is the usage, which comes at once.
            self._tally.per_token.append((times[-1] - times[0]) / (case.num_tokens - 1))

    def _compare(self, case: Case, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> None:
        ordered = sorted(choices, key=lambda choice: int(choice["index"]))
        found = tuple((_text(choice), choice["finish_reason"]) for choice in ordered)
        self._tally.num_tokens += case.num_tokens
        if found != case.expected or usage.get("completion_tokens") != case.num_tokens:
            self._tally.faults.append(f"different: {case.body} gave {found}, not {case.expected}")


def _check_status(response: httpx.Response, content: bytes) -> None:
    if response.status_code == 429:
        raise _BusyError(float(response.headers["retry-after"]))
    if response.status_code != 200:
        raise httpx.HTTPError(f"status {response.status_code}: {content[:200]!r}")


async def events_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Until [DONE], without which a stream is not whole."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise httpx.HTTPError(f"an error in the stream: {event}")
            yield event
    raise httpx.HTTPError("the stream ended without [DONE]")


def _grow(choices: list[dict[str, Any]], event: dict[str, Any]) -> None:
    for part in event["choices"]:
        choice = choices[part["index"]]
        choice["text"] += _text(part)
        choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("delta") or choice.get("message") or {}).get("content") or "")
