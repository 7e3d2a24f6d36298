"""Requests of the matrix: every sampling feature, drawn from a number, in a pool that covers all pairs."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import combinations, islice
from typing import Any, TypeVar

from ssd.sampling import SamplingParams
from ssd.sampling.constraint import Grammar

Drawn = TypeVar("Drawn")
Value = tuple[str, Any]

MAX_TOKENS = 20
REGEX = "[ab]{3}(c|d)[0-9]{2,8}"
SCHEMA = (
    '{"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}, '
    '"b": {"enum": ["xy", "xz"]}}, "required": ["n", "b"], "additionalProperties": false}'
)
TEXT = (
    "You are a careful assistant. Answer briefly and say what you do not know. "
    "The quick brown fox jumps over the lazy dog while the engine counts its tokens, "
    "def add(a, b): return a + b, and every sum comes out the same. "
)
END = 1
"""The end token of the tiny models."""
DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.7, 1.0, 1.6),
    "truncation": ("none", "top_k", "top_p", "min_p", "all"),
    "penalties": ("none", "presence", "frequency", "repetition", "all"),
    "edits": ("none", "bias", "bad_words", "min_tokens", "all"),
    "grammar": ("none", "regex", "schema"),
    "n": (1, 2, 3),
    "ending": ("length", "eos", "token", "string", "kept_string"),
    "logprobs": (None, 0, 3),
    "prompt": ("short", "shared", "own"),
    "scored_prompt": (False, True),
}
_TRUNCATION: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.02},
}
_PENALTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.0},
    "repetition": {"repetition_penalty": 1.3},
    "all": {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request by its features."""

    seed: int
    temperature: float
    truncation: str
    penalties: str
    edits: str
    grammar: str
    n: int
    ending: str
    logprobs: int | None
    prompt: str
    scored_prompt: bool

    @classmethod
    def drawn(cls, seed: int) -> "Asked":
        draw = random.Random(f"request {seed}")
        return cls(seed, *(draw.choice(values) for values in DIMENSIONS.values()))

    @property
    def may_be_cached(self) -> bool:
        """Whether its prompt has a whole block, and is not computed for the scores of its tokens."""
        return self.prompt != "short" and not self.scored_prompt

    @property
    def params(self) -> SamplingParams:
        draw = random.Random(f"params {self.seed}")
        settings: dict[str, Any] = {**_TRUNCATION[self.truncation], **_PENALTIES[self.penalties]}
        bias = {END: 4.0} if self.ending == "eos" else {}
        if self.edits in ("bias", "all"):
            bias |= {draw.randrange(2, 500): draw.choice((-5.0, 5.0)) for _ in range(60)}
        if self.edits in ("bad_words", "all"):
            settings["bad_words"] = (*"aefghijklmopqrstuvw", "th", "er", "fox", "a b", "12")
        if self.edits in ("min_tokens", "all"):
            settings["min_tokens"] = 8
        if self.ending == "token":
            settings["stop_token_ids"] = tuple(draw.sample(range(2, 500), 30))
        if "string" in self.ending:
            settings["stop"] = ("r", "he", "a b", "3", "or", "xz")
        if self.grammar != "none":
            is_regex = self.grammar == "regex"
            settings["grammar"] = Grammar("regex", REGEX) if is_regex else Grammar("json_schema", SCHEMA)
        return SamplingParams(
            temperature=self.temperature,
            seed=self.seed * 7919 + (1 << 40),
            n=self.n,
            max_tokens=MAX_TOKENS,
            ignore_eos=self.ending == "length" and self.grammar == "none",
            include_stop_str_in_output=self.ending == "kept_string",
            logit_bias=bias or None,
            logprobs=self.logprobs,
            prompt_logprobs=2 if self.scored_prompt else None,
            **settings,
        )

    def prompt_ids(self, ids: Sequence[int]) -> list[int]:
        """A part of the tokens of TEXT; `shared` ones begin alike."""
        draw = random.Random(f"prompt {self.seed}")
        if self.prompt == "short":
            start, length = draw.randrange(60), draw.randint(1, 3)
        else:
            start = 0 if self.prompt == "shared" else draw.randrange(1, 60)
            length = draw.randint(24, 60)
        return list(ids[start : start + length])


def values_of(record: Any) -> list[Value]:
    """The value of each dimension."""
    names = [field.name for field in fields(record)]
    return [(name, value) for name, value in zip(names, astuple(record), strict=True) if name != "seed"]


def pairs_of(record: Any) -> set[frozenset[Value]]:
    return {frozenset(pair) for pair in combinations(values_of(record), 2)}


def covering(candidates: Iterable[Drawn], goals: Callable[[Drawn], set[Any]]) -> list[Drawn]:
    """Takes candidates, each the best of sixty, until twenty times sixty in a row reach nothing new."""
    found, reached, waiting, num_barren = list[Drawn](), set[Any](), iter(candidates), 0
    while num_barren < 20:
        best = max(islice(waiting, 60), key=lambda each: len(goals(each) - reached))
        if new := goals(best) - reached:
            found.append(best)
            reached |= new
        num_barren = 0 if new else num_barren + 1
    return found


@cache
def pool(number: int) -> tuple[Asked, ...]:
    """Requests that have all pairs of features: some forty."""
    drawn = (Asked.drawn(number * 100_000 + index) for index in range(100_000))
    return tuple(covering(drawn, pairs_of))
