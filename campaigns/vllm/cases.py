"""Requests that are compared with and without a draft: prompts, and sampling parameters by case.

Beside vLLM's own parameters a case may have `regex`, a grammar; `aborted`, the numbers of the texts that are
aborted on the way; and `prefix`, with which all prompts begin. There is none with `min_p`: vLLM refuses it
where tokens are drafted. Knows no vLLM.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ssd.sampling.seeds import seed_of

SALT = "equality"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Numbers: 1 2 3 4 5 6 7",
    "Once upon a time there was a",
    "Write a haiku about the sea.",
    "import os\nimport sys\n\ndef main():\n",
    "The three laws of motion are",
    "Q: What is the boiling point of water?\nA:",
)
OTHER_PROMPTS = (
    "My favourite recipe begins with",
    "class Stack:\n    def __init__(self):\n",
    "The history of Rome",
    "SELECT name FROM",
    "Dear Sir or Madam,",
    "for i in range(10):\n",
    "The moon is",
    "1, 1, 2, 3, 5, 8,",
)
"""What rounding does is found with these, not with those that are compared."""
_PREFIX = (
    "You are a careful assistant. You answer in short sentences, and you say so when you do not know. " * 2
)
"""Longer than a block of the KV cache."""
_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Texts:
    prompts: Sequence[str]
    num_tokens: int

    def asked(self, params: dict[str, Any]) -> list[str]:
        """The prompts of a case."""
        return [params.get("prefix", "") + prompt for prompt in self.prompts]

    def params(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Each with a seed of its own, if it has one."""
        aborted = params.get("aborted", ())
        given = {"max_tokens": self.num_tokens, **params}
        for name in ("aborted", "prefix"):
            given.pop(name, None)
        seeds = [{"seed": params["seed"] + number} if "seed" in params else {} for number in self._numbers]
        return [
            {**given, **seed, "is_aborted": number in aborted}
            for number, seed in zip(self._numbers, seeds, strict=True)
        ]

    def seeds(self, params: dict[str, Any]) -> list[int]:
        if "seed" in params:
            return [(params["seed"] + number) & _SEED_MASK for number in self._numbers]
        return [seed_of(str(number), SALT) for number in self._numbers]

    @property
    def _numbers(self) -> range:
        return range(len(self.prompts))


def cases(temperatures: list[float], *, unseeded: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    for temperature in temperatures:
        yield f"T={temperature} seeded", {"temperature": temperature, "seed": 7}
        if temperature > 0 and unseeded:
            yield f"T={temperature} unseeded", {"temperature": temperature}
    yield "grammar", {"temperature": 0.8, "seed": 3, "regex": "([a-z]{1,8}[ ,])+", "ignore_eos": False}
    truncated = {"temperature": 0.9, "top_p": 0.9, "top_k": 50}
    yield (
        "truncated, penalties, minimum",
        {**truncated, "presence_penalty": 0.6, "min_tokens": 4, "seed": -20},
    )
    warm = {"temperature": 0.7}
    yield "top_p", {**warm, "seed": 30, "top_p": 0.8}
    yield "top_k", {**warm, "seed": 40, "top_k": 20}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    yield "three penalties", {**warm, "seed": 60, **penalties}
    yield "bad words", {**warm, "seed": 70, "bad_words": ["the", " of", " a big", "return"]}
    yield "log-probabilities", {**warm, "seed": 80, "logprobs": 3}
    yield "n=2", {**warm, "seed": 90, "n": 2}
    yield "stop strings", {**warm, "seed": 100, "stop": [" the", "\n\n"], "ignore_eos": False}
    yield "aborts", {**warm, "seed": 110, "aborted": [1, 4]}
    yield "common prefix", {**warm, "seed": 120, "prefix": _PREFIX}
