"""Texts that keep to a grammar: JSON schemas, regular expressions, choices and Lark grammars, by llguidance.

Knows the library and the tokenizer. A constraint follows one text; drafted tokens are tried on a copy,
so that every position of a verification has the mask it would have without a draft.

Compiling may take a second. It lets other threads go on, so whoever has an engine to keep going does it
elsewhere (`Grammars.prepare`), before the request is added; the engine then finds it compiled.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import llguidance
import llguidance.hf
import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ssd.engine.grammar_source import source_of
from ssd.sampling.constraint import Allowed, Constraint, Grammar, GrammarError

_KEPT = 64
"""Grammars that stay compiled."""
_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarCompiler:
    def __init__(self, tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> None:
        self._tokenizer: LLTokenizer = llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=vocab_size, eos_token=list(end_ids) or None
        )
        self._vocab_size = vocab_size
        self.compiled = lru_cache(_KEPT)(self._compile)
        """GrammarError where a grammar makes no sense."""

    def constraint(self, grammar: Grammar) -> Constraint:
        """For a new text."""
        return GrammarConstraint(self.compiled(grammar).deep_copy(), self._vocab_size)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, source_of(grammar), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(f"the {grammar.kind} cannot be used: {matcher.get_error()[:500]}")
        start = matcher.deep_copy()
        _mask(start, self._vocab_size)
        if start.is_error():
            raise GrammarError(f"the {grammar.kind} cannot be used: no text fits it")
        return matcher


class Grammars:
    """Constraints by grammar, for any thread."""

    def __init__(self, tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> None:
        self._settings = tokenizer, end_ids, vocab_size
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    def load(self) -> "GrammarCompiler":
        """The compiler, made once: for a large vocabulary that takes seconds, and no thread moves."""
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(*self._settings)
            return self._compiler

    def prepare(self, grammar: Grammar) -> None:
        """Compiles what is not compiled; GrammarError where a grammar makes no sense."""
        self.load().compiled(grammar)

    def constraint(self, grammar: Grammar) -> Constraint:
        """For a new text."""
        return self.load().constraint(grammar)


class GrammarConstraint:
    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._is_lost = False

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        if self._is_lost:
            return [np.zeros_like(_mask(self._matcher, self._vocab_size))]
        tokens = list(drafted[: self.num_allowed(drafted)])
        found = [_mask(self._matcher, self._vocab_size)]
        # On a copy: a token that is allowed but leads nowhere spoils a matcher for good.
        ahead = self._matcher.deep_copy() if tokens else self._matcher
        for token in tokens:
            ahead.consume_token(token)
            found.append(_mask(ahead, self._vocab_size))
        return found

    def num_allowed(self, drafted: Sequence[int]) -> int:
        return (
            0 if self._is_lost or self._matcher.is_error() else self._matcher.validate_tokens(list(drafted))
        )

    def advance(self, tokens: Sequence[int]) -> None:
        taken = self._matcher.try_consume_tokens(list(tokens))
        # An end token that was to be ignored may be refused; no mask had allowed it. But an added token that
        # spells what must come is allowed, and then not taken for that text: it would come for ever.
        is_over = self._matcher.is_error() or self._matcher.is_stopped()
        refused = tokens[taken] if taken < len(tokens) and not is_over else None
        self._is_lost |= refused is not None and _allows(_mask(self._matcher, self._vocab_size), refused)


def _allows(mask: Allowed, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)


def _mask(matcher: LLMatcher, vocab_size: int) -> Allowed:
    bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
    llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
    if matcher.is_error():
        # It led nowhere, or grew too complex. The library would end the text here, as if it were complete.
        bits.fill(0)
    allowed: Allowed = bits[0]
    return allowed
