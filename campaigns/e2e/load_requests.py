"""Requests for a server under load, and what the engine alone says to each.

Knows bodies of HTTP requests and the sampling parameters they stand for. Every request has its seed, so the
answer is settled before anything is sent.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd import LLM, Grammar, SamplingParams
from ssd.engine.outputs import RequestOutput
from ssd.engine.prompts import Prompt

WORDS = (
    "the",
    "quick",
    "brown fox",
    "jumps over",
    "lazy",
    "once upon",
    "def",
    "return a",
    "naïve",
    "你好",
    "🙂",
)
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

    @property
    def is_alone(self) -> bool:
        return len(self.expected) == 1


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
