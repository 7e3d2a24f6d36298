"""The sampling parameters of a request: a frozen, validated record.

Knows the meaning, bounds and normal form of every field. Does not know the tokenizer (bad words and stop
strings stay strings), the vocabulary (see `check_vocabulary`) or logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssd.config.server import MAX_LOGPROBS, MAX_N, MAX_STOP_STRINGS
from ssd.errors import InvalidRequestError
from ssd.sampling.constraint import Grammar

MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_DRAFT_CHARS = 256
MAX_TEMPERATURE = 1000.0
MAX_COUNT = 2**31 - 1
"""Largest number of tokens that every component and every message can represent."""

# At lower temperatures float32 no longer resolves the noise in z/T + g, so the result is the argmax anyway.
GREEDY_BELOW = 1e-5

SEED_MODULUS = 2**64

BiasPairs = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. Containers become tuples, so instances are hashable."""

    temperature: float = 1.0  # 0 is greedy; values under GREEDY_BELOW become 0
    top_k: int = 0  # 0 is off; -1 is accepted and becomes 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    logit_bias: Mapping[int, float] | BiasPairs | None = None  # read `bias` instead
    bad_words: Sequence[str] = ()
    seed: int | None = None  # any int, taken modulo 2**64
    stop: Sequence[str] = ()  # a single string and None are accepted; stored as a tuple
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    max_tokens: int | None = 16  # None: up to the model's maximum length
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    grammar: Grammar | None = None  # the text must satisfy it
    draft: str = ""  # only drafts of this name speculate; empty: any

    def __post_init__(self) -> None:
        normal: dict[str, Any] = {
            **_normal_numbers(self),
            "bad_words": _strings(
                "bad_words", self.bad_words, most=MAX_BAD_WORDS, longest=MAX_BAD_WORD_CHARS
            ),
            "stop": _strings("stop", self.stop, most=MAX_STOP_STRINGS, longest=MAX_STOP_CHARS),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids, most=MAX_STOP_TOKEN_IDS),
            "logit_bias": _bias_pairs(self.logit_bias),
        }
        if not isinstance(self.draft, str) or len(self.draft) > MAX_DRAFT_CHARS:
            raise _refusal("draft", self.draft, f"pass a name of at most {MAX_DRAFT_CHARS} characters")
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise _refusal(name, getattr(self, name), "pass True or False")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise _refusal("grammar", self.grammar, "pass a Grammar, such as Grammar('regex', '[0-9]+')")
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refusal(
                "min_tokens", self.min_tokens, f"lower it to max_tokens={self.max_tokens} or raise that"
            )

    @property
    def greedy(self) -> bool:
        """Whether the token is the argmax of the processed logits."""
        return self.temperature == 0.0

    @property
    def bias(self) -> BiasPairs:
        """`logit_bias` as (token, bias) pairs in ascending token order."""
        return self.logit_bias if isinstance(self.logit_bias, tuple) else ()

    @property
    def penalised(self) -> bool:
        """Whether any of the three penalties is on."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def truncated(self) -> bool:
        """Whether min_p, top_k or top_p may remove tokens."""
        return self.min_p > 0.0 or self.top_k > 0 or self.top_p < 1.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises for token ids that the model does not have. Called once, at admission."""
        for name, ids in (
            ("logit_bias", [token for token, _ in self.bias]),
            ("stop_token_ids", self.stop_token_ids),
        ):
            for token in ids:
                if token >= vocab_size:
                    raise _refusal(name, token, f"use token ids below the vocabulary size, {vocab_size}")


def _normal_numbers(params: SamplingParams) -> dict[str, Any]:
    temperature = _number("temperature", params.temperature, low=0.0, high=MAX_TEMPERATURE)
    top_p = _number("top_p", params.top_p, low=0.0, high=1.0)
    if top_p == 0.0:
        raise _refusal(
            "top_p", params.top_p, "use a value in (0, 1]; for the single best token, temperature=0"
        )
    top_k = _integer("top_k", params.top_k, low=-1, high=MAX_COUNT)
    seed = params.seed
    return {
        "temperature": 0.0 if temperature < GREEDY_BELOW else temperature,
        "top_k": max(top_k, 0),
        "top_p": top_p,
        "min_p": _number("min_p", params.min_p, low=0.0, high=1.0),
        "repetition_penalty": _number("repetition_penalty", params.repetition_penalty, low=0.01, high=100.0),
        "presence_penalty": _number("presence_penalty", params.presence_penalty, low=-2.0, high=2.0),
        "frequency_penalty": _number("frequency_penalty", params.frequency_penalty, low=-2.0, high=2.0),
        "seed": None if seed is None else _integer("seed", seed) % SEED_MODULUS,
        "min_tokens": _integer("min_tokens", params.min_tokens, low=0, high=MAX_COUNT),
        "max_tokens": None
        if params.max_tokens is None
        else _integer("max_tokens", params.max_tokens, low=1, high=MAX_COUNT),
        "n": _integer("n", params.n, low=1, high=MAX_N),
        "logprobs": _top_count("logprobs", params.logprobs),
        "prompt_logprobs": _top_count("prompt_logprobs", params.prompt_logprobs),
    }


def _refusal(name: str, value: object, remedy: str) -> InvalidRequestError:
    shown = repr(value)
    return InvalidRequestError(
        f"{name}={shown if len(shown) <= 80 else shown[:77] + '...'} is refused: {remedy}"
    )


def _number(name: str, value: object, *, low: float, high: float) -> float:
    # bool is a subclass of int, but temperature=True is a mistake.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refusal(name, value, f"pass a number from {low:g} to {high:g}")
    if not low <= value <= high:  # NaN fails every comparison
        raise _refusal(name, value, f"use a finite value from {low:g} to {high:g}")
    return float(value)


def _integer(name: str, value: object, *, low: int | None = None, high: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(name, value, "pass an integer")
    if low is not None and value < low:
        raise _refusal(name, value, f"use at least {low}")
    if high is not None and value > high:
        raise _refusal(name, value, f"use at most {high}")
    return value


def _top_count(name: str, value: object) -> int | None:
    return None if value is None else _integer(name, value, low=0, high=MAX_LOGPROBS)


def _strings(name: str, value: object, *, most: int, longest: int) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise _refusal(name, value, "pass strings")
    if len(value) > most:
        raise _refusal(name, value, f"pass at most {most} strings, not {len(value)}")
    for text in value:
        if not isinstance(text, str) or not 1 <= len(text) <= longest:
            raise _refusal(name, text, f"each entry must be a string of 1 to {longest} characters")
    return tuple(value)


def _token_ids(name: str, value: object, *, most: int) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise _refusal(name, value, "pass a sequence of token ids")
    if len(value) > most:
        raise _refusal(name, value, f"pass at most {most} token ids, not {len(value)}")
    return tuple(_integer(name, token, low=0) for token in value)


def _bias_pairs(value: object) -> BiasPairs | None:
    if value is None:
        return None
    # Pairs are the stored form, so that dataclasses.replace can pass it back in.
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(p, tuple) and len(p) == 2 for p in pairs):
        raise _refusal("logit_bias", value, "pass a mapping of token id to bias")
    if len(pairs) > MAX_LOGIT_BIAS:
        raise _refusal("logit_bias", value, f"pass at most {MAX_LOGIT_BIAS} entries, not {len(pairs)}")
    normal = {
        _integer("logit_bias", token, low=0): _number("logit_bias", bias, low=-100.0, high=100.0)
        for token, bias in pairs
    }
    return tuple(sorted(normal.items()))
