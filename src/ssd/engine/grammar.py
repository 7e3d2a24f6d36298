"""Texts that keep to a grammar: JSON schemas, regular expressions, choices and Lark grammars, by llguidance.

Knows the library and the tokenizer. A constraint follows one text; drafted tokens are tried on a copy,
so that every position of a verification has the mask it would have without a draft.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import llguidance
import llguidance.hf
import llguidance.numpy
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ssd.sampling.constraint import Allowed, Constraint, Grammar

_KEPT = 64
"""Grammars that stay compiled."""
_LIMITS = LLParserLimits(verbose_errors=False)
_JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Fixed spacing: a text that may hold any number of spaces need never end."""


class GrammarCompiler:
    """Made when the first grammar is asked for: the tokenizer takes a second to prepare."""

    def __init__(self, tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> None:
        self._tokenizer: LLTokenizer = llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=vocab_size, eos_token=list(end_ids) or None
        )
        self._vocab_size = vocab_size
        self._compiled = lru_cache(_KEPT)(self._compile)

    def constraint(self, grammar: Grammar) -> Constraint:
        """For a new text; ValueError where the grammar makes no sense."""
        return GrammarConstraint(self._compiled(grammar).deep_copy(), self._vocab_size)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise ValueError(f"the {grammar.kind} cannot be used: {matcher.get_error()[:500]}")
        start = matcher.deep_copy()
        _mask(start, self._vocab_size)
        if start.is_error():
            raise ValueError(f"the {grammar.kind} cannot be used: no text fits it")
        return matcher


def grammars(tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> Callable[[Grammar], Constraint]:
    """Constraints by grammar; nothing is prepared before the first."""
    compiler = cache(lambda: GrammarCompiler(tokenizer, end_ids, vocab_size))
    return lambda grammar: compiler().constraint(grammar)


class GrammarConstraint:
    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        tokens = list(drafted[: self.num_allowed(drafted)])
        found = [_mask(self._matcher, self._vocab_size)]
        # On a copy: a token that is allowed but leads nowhere spoils a matcher for good.
        ahead = self._matcher.deep_copy() if tokens else self._matcher
        for token in tokens:
            ahead.consume_token(token)
            found.append(_mask(ahead, self._vocab_size))
        return found

    def num_allowed(self, drafted: Sequence[int]) -> int:
        return self._matcher.validate_tokens(list(drafted))

    def advance(self, tokens: Sequence[int]) -> None:
        # What is refused here was never allowed by a mask: an end token that was to be ignored.
        self._matcher.try_consume_tokens(list(tokens))


def _mask(matcher: LLMatcher, vocab_size: int) -> Allowed:
    bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
    llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
    allowed: Allowed = bits[0]
    return allowed


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON_OPTIONS)
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(_parsed(grammar.text), overrides=_JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            return LLMatcher.grammar_from_lark(
                f"start: {' | '.join(map(json.dumps, _choices(grammar.text)))}"
            )
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the grammar's text is no JSON: {error}") from error


def _choices(text: str) -> list[str]:
    choices = _parsed(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise ValueError(f"choices are a list of texts, as JSON, not {text[:60]!r}")
    return choices
