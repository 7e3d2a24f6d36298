"""Honest clients of the soak: seeded requests, each with the answer that the engine gives it alone.

Knows HTTP, server-sent events and sampling parameters. Clients read streams fast or slowly, leave, vanish, or
ask for the whole answer at once. Anything that is not as it should be is a fault in the tally.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import httpx

from ssd import LLM, Grammar, SamplingParams
from ssd.engine.outputs import RequestOutput
from ssd.engine.prompts import Prompt

Manner = Literal["read", "dawdle", "leave", "vanish", "whole"]
WEIGHTS = (60, 8, 14, 6, 12)
PATIENCE = 120.0
"""Seconds after which a request counts as stuck."""
WORDS = ("the", "quick", "brown fox", "jumps over", "once upon", "def", "return a", "naïve", "你好", "🙂")
STOPS: tuple[list[str], ...] = (["e"], [" t", "qu"], ["\n"], ["ing", "the "])
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "sizes": {"enum": [[], [1, 2]]}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
FORMS: tuple[tuple[dict[str, Any], Grammar], ...] = (
    ({"json": SCHEMA}, Grammar("json_schema", json.dumps(SCHEMA))),
    ({"regex": "[0-9]{3}-[a-f]{2}"}, Grammar("regex", "[0-9]{3}-[a-f]{2}")),
    ({"choice": ["red", "green"]}, Grammar("choice", '["red", "green"]')),
)


@dataclass(frozen=True, slots=True)
class Case:
    path: str
    body: dict[str, Any]
    expected: tuple[tuple[str, str], ...]
    """Text and finish reason of each choice."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request before its answer is known."""

    path: str
    body: dict[str, Any]
    prompt: Prompt
    params: SamplingParams


def make_cases(model: Path, count: int, *, seed: int, **settings: Any) -> list[Case]:
    chance = random.Random(seed)
    with LLM(str(model), device="cpu", show_progress=False, **settings) as llm:
        drafts = [_draft(chance, llm) for _ in range(count)]
        outputs = llm.generate(
            [each.prompt for each in drafts], [each.params for each in drafts], use_tqdm=False
        )
    return [_case(*each) for each in zip(drafts, outputs, strict=True)]


def _draft(chance: random.Random, llm: LLM) -> _Draft:
    params: dict[str, Any] = {
        "temperature": chance.choice((0.0, 0.0, 0.7, 1.0)),
        "seed": chance.getrandbits(32),
        "max_tokens": chance.randint(1, 80),
        "n": chance.choice((1, 1, 1, 1, 2, 3)),
    }
    body = dict(params)
    if chance.random() < 0.2:
        params["stop"] = body["stop"] = chance.choice(STOPS)
    if chance.random() < 0.1:
        params["ignore_eos"] = body["ignore_eos"] = True
    if chance.random() < 0.15:
        body["structured_outputs"], params["grammar"] = chance.choice(FORMS)
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
    if chance.random() < 0.25:
        messages = [{"role": "user", "content": text}]
        body["messages"] = messages
        return _Draft("/v1/chat/completions", body, llm.chat_prompt(messages), SamplingParams(**params))
    body["prompt"] = text
    return _Draft("/v1/completions", body, text, SamplingParams(**params))


def _case(draft: _Draft, output: RequestOutput) -> Case:
    expected = tuple((each.text, each.finish_reason) for each in output.outputs)
    return Case(draft.path, draft.body, expected, sum(len(each.token_ids) for each in output.outputs))


@dataclass(slots=True)
class Tally:
    done: Counter[Manner] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_429: int = 0
    num_tokens: int = 0


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
        num_events = 0
        choices = [{"index": index, "text": "", "finish_reason": None} for index in range(len(case.expected))]
        usage: dict[str, Any] = {}
        num_wanted = self._chance.randint(1, 10) if manner == "leave" else None
        async with self._http.stream("POST", case.path, json=body) as response:
            if response.status_code != 200:
                _check_status(response, await response.aread())
            async for event in events_of(response):
                num_events += 1
                _grow(choices, event)
                usage = event.get("usage") or usage
                if num_events == num_wanted:
                    return
                if manner == "dawdle":
                    await asyncio.sleep(self._chance.uniform(0, 0.2))
        self._compare(case, choices, usage)

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
