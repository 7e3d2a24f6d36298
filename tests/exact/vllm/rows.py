"""The requests that every kind of vLLM must answer with the same tokens. Imports neither vLLM nor drafts.

A row is one call: a few prompts with the same parameters, and what happens meanwhile. `SHORT` has a row for
each feature and a few drawn mixtures of features; `LONG` has many more mixtures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

DraftKind = Literal["good", "fair", "random"]
"""The target itself, its first layers, and a model that has nothing to do with the target."""

PROMPTS = (
    "The quick brown fox",
    "def add(a, b):\n",
    "Once upon a time",
    "for i in range(10):\n    print(",
)
PREFIX = "Once upon a time there was a small model that wrote, and a large one that read. " * 2
"""Longer than a block of the KV cache and than the tokens of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    sampling: Mapping[str, Any]
    """vLLM's own parameters; `regex` is a grammar, `seed` counts up from prompt to prompt."""
    draft: DraftKind = "good"
    num_prompts: int = 2
    num_tokens: int = 12
    has_prefix: bool = False
    aborted: Sequence[int] = ()
    """These prompts are aborted after a few steps."""
    is_draft_killed: bool = False
    """After a few steps."""
    also: Sequence[str] = ()
    """Counters that must not be 0 after the row: what the row is there for has happened."""

    @property
    def prompts(self) -> list[str]:
        return [PREFIX * self.has_prefix + prompt for prompt in PROMPTS[: self.num_prompts]]

    @property
    def is_fixed(self) -> bool:
        """Whether stock vLLM gives the same tokens each time."""
        return "seed" in self.sampling or self.sampling["temperature"] == 0

    def params(self) -> Iterator[dict[str, Any]]:
        """The parameters of each prompt."""
        for number in range(self.num_prompts):
            seed = {"seed": self.sampling["seed"] + number} if "seed" in self.sampling else {}
            yield {"ignore_eos": True, "max_tokens": self.num_tokens, **self.sampling, **seed}


@dataclass(frozen=True, slots=True)
class _Columns:
    """What a mixture is drawn from. vLLM refuses `min_p` and `logit_bias` where tokens are drafted."""

    truncation: Sequence[Mapping[str, Any]] = field(
        default=({}, {"top_k": 20}, {"top_p": 0.8}, {"top_k": 50, "top_p": 0.9})
    )
    penalties: Sequence[Mapping[str, Any]] = field(
        default=(
            {},
            {"presence_penalty": 0.6},
            {"frequency_penalty": 0.5, "repetition_penalty": 1.2},
            {"presence_penalty": -0.5, "repetition_penalty": 0.9},
        )
    )
    restrictions: Sequence[Mapping[str, Any]] = field(
        default=(
            {},
            {},
            {"bad_words": ["the", " a", "on"]},
            {"allowed_token_ids": list(range(20, 90))},
            {"regex": "([a-z]{1,4}[ ,])+"},
        )
    )
    ends: Sequence[Mapping[str, Any]] = field(
        default=(
            {},
            {},
            {"stop": [" ", "e"]},
            {"ignore_eos": False, "stop_token_ids": list(range(50, 120)), "min_tokens": 4},
        )
    )
    extras: Sequence[Mapping[str, Any]] = field(default=({}, {}, {"logprobs": 3}, {"n": 2}))


def _mixtures(number: int, seed: int) -> Iterator[Row]:
    chance, columns = Random(seed), _Columns()
    for place in range(number):
        temperature = chance.choice([0.0, 0.5, 0.8, 1.2])
        parts = [columns.penalties, columns.restrictions, columns.ends, columns.extras]
        sampling = {"temperature": temperature, "seed": chance.randrange(-(2**63), 2**63 - 9)}
        sampling |= chance.choice(columns.truncation) if temperature else {}
        for part in parts:
            sampling |= chance.choice(part)
        if not temperature:
            sampling["n"] = 1  # vLLM refuses several greedy answers.
        yield Row(
            name=f"mixture {seed}.{place}",
            sampling=sampling,
            draft=chance.choice(["good", "fair", "fair", "random"]),
            num_prompts=chance.choice([1, 2, 4]),
            has_prefix=chance.random() < 0.3,
            is_draft_killed=chance.random() < 0.15,
            aborted=[0] if chance.random() < 0.15 else [],
        )


_WARM: Mapping[str, Any] = {"temperature": 0.8, "seed": 7}
_DRAFTED = ("drafted", "accepted")


def _features() -> Iterator[Row]:
    """One row for each feature."""
    yield Row(name="greedy", sampling={"temperature": 0.0}, also=_DRAFTED)
    yield Row(name="seeded", sampling=_WARM, also=_DRAFTED)
    yield Row(name="extreme seeds", sampling={"temperature": 1.0, "seed": -(2**63)}, also=_DRAFTED)
    yield Row(name="unseeded", sampling={"temperature": 0.8}, also=_DRAFTED)
    yield Row(name="top-k", sampling={**_WARM, "top_k": 20}, also=_DRAFTED)
    yield Row(name="top-p", sampling={**_WARM, "top_p": 0.8}, also=_DRAFTED)
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    yield Row(name="penalties", sampling={**_WARM, **penalties}, also=_DRAFTED)
    yield Row(name="greedy, penalties", sampling={"temperature": 0.0, **penalties}, also=_DRAFTED)
    some = list(range(20, 90))
    yield Row(name="allowed tokens", sampling={**_WARM, "allowed_token_ids": some}, also=("drafted",))
    yield Row(name="bad words", sampling={**_WARM, "bad_words": ["the", " a", "on"]}, also=_DRAFTED)
    stops = {"ignore_eos": False, "stop_token_ids": list(range(50, 120))}
    yield Row(name="stop tokens", sampling={**_WARM, **stops})
    yield Row(name="minimum length", sampling={**_WARM, **stops, "min_tokens": 6}, also=("drafted",))
    yield Row(name="stop strings", sampling={**_WARM, "stop": [" ", "e"]})
    yield Row(name="grammar", sampling={**_WARM, "regex": "([a-z]{1,4}[ ,])+"}, also=("drafted",))
    yield Row(name="log-probabilities", sampling={**_WARM, "logprobs": 3}, also=_DRAFTED)
    yield Row(name="n = 2", sampling={**_WARM, "n": 2}, also=_DRAFTED)
    yield Row(name="chunked prefix", sampling=_WARM, has_prefix=True, also=(*_DRAFTED, "chunked"))
    yield Row(
        name="cached prefix", sampling={**_WARM, "seed": 20}, has_prefix=True, also=(*_DRAFTED, "prefix hits")
    )
    yield Row(name="aborts", sampling=_WARM, num_prompts=4, aborted=(1, 2), also=_DRAFTED)
    yield Row(name="preemption", sampling=_WARM, num_prompts=4, num_tokens=72, also=(*_DRAFTED, "preempted"))
    yield Row(name="four at once", sampling=_WARM, num_prompts=4, also=_DRAFTED)
    yield Row(
        name="greedy, killed draft", sampling={"temperature": 0.0}, is_draft_killed=True, also=("lost",)
    )
    yield Row(name="killed draft", sampling=_WARM, num_prompts=4, is_draft_killed=True, also=("lost",))
    yield Row(name="fair draft", sampling=_WARM, draft="fair", num_tokens=24, also=_DRAFTED)
    yield Row(name="greedy, fair draft", sampling={"temperature": 0.0}, draft="fair", also=("drafted",))
    yield Row(name="random draft", sampling=_WARM, draft="random")
    yield Row(name="greedy, random draft", sampling={"temperature": 0.0}, draft="random")


def _by_draft(rows: Iterator[Row]) -> tuple[Row, ...]:
    """Each change of the draft costs a second."""
    return tuple(sorted(rows, key=lambda row: ("good", "fair", "random").index(row.draft)))


SHORT = _by_draft(iter([*_features(), *_mixtures(8, seed=1)]))
LONG = _by_draft(iter([*_features(), *_mixtures(150, seed=2)]))
_ON_V1 = {"greedy", "seeded", "unseeded", "top-k", "top-p", "penalties", "greedy, penalties", "bad words"}
_ON_V1 |= {"allowed tokens", "minimum length", "grammar", "log-probabilities", "n = 2", "cached prefix"}
V1 = tuple(row for row in SHORT if row.name in _ON_V1)
"""vLLM's V1 runner samples by our rule: the same tokens with and without a draft, stock vLLM's if greedy."""
