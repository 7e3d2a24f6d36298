"""Grammars by llguidance: JSON schemas, regular expressions, choices and Lark grammars.

Knows the library and the tokenizer. A constraint follows one sequence; masks behind drafted tokens are
computed on a copy, so every position of a verification has the mask it would have without a draft.

Compiling may take seconds, but does not block other threads. So call `Grammars.prepare` in another thread
before adding a request; the engine then finds the grammar in the cache. Servers compile untrusted grammars in
a sandbox process first (`worker/compile_queue.py`).
"""

import threading
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from llguidance import LLMatcher

from ssd.engine.grammar_cache import GrammarCache
from ssd.engine.grammar_compile import compile_source, mask_of, no_token, trie_of
from ssd.engine.grammar_source import source_of
from ssd.engine.grammar_time import EngineTime, GrammarTime
from ssd.sampling.constraint import Allowed, Constraint, Grammar, GrammarError


class GrammarCompiler:
    def __init__(self, tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> None:
        self._trie = trie_of(tokenizer_text(tokenizer), end_ids, vocab_size)
        self._vocab_size = vocab_size
        self._cache: GrammarCache[Grammar, LLMatcher] = GrammarCache()
        self._time = EngineTime()

    def is_compiled(self, grammar: Grammar) -> bool:
        return self._cache.get(grammar) is not None

    def compiled(self, grammar: Grammar, num_bytes: int = 0) -> LLMatcher:
        """The grammar's matcher. GrammarError: it cannot be used. `num_bytes`: its memory, if known."""
        found = self._cache.get(grammar)
        if found is None:
            found, refusal = compile_source(self._trie, source_of(grammar), self._vocab_size)
            if refusal:
                raise unusable(grammar, refusal)
            self._cache.put(grammar, found, num_bytes)
        return found

    def constraints(self, grammar: Grammar, count: int) -> list[Constraint]:
        """Constraints for the `count` sequences of one request."""
        matcher, spent = self.compiled(grammar), GrammarTime(self._time)
        return [GrammarConstraint(matcher.deep_copy(), self._vocab_size, spent) for _ in range(count)]


def tokenizer_text(tokenizer: Any) -> str:
    """The JSON of a fast tokenizer, for llguidance."""
    plain = copy(tokenizer.backend_tokenizer)
    plain.no_padding()
    plain.no_truncation()
    text: str = plain.to_str()
    return text


def unusable(grammar: Grammar, reason: str) -> GrammarError:
    return GrammarError(f"the {grammar.kind} cannot be used: {reason}")


class Grammars:
    """Compiles grammars and makes constraints; thread-safe."""

    def __init__(self, tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> None:
        self._settings = tokenizer, end_ids, vocab_size
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    def load(self) -> "GrammarCompiler":
        """The compiler, made once. That takes seconds for a large vocabulary and blocks all threads."""
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(*self._settings)
            return self._compiler

    @property
    def settings(self) -> tuple[Any, Sequence[int], int]:
        """Tokenizer, end ids and size of the vocabulary."""
        return self._settings

    def is_prepared(self, grammar: Grammar) -> bool:
        """Whether it is compiled; it then stays in the cache for some seconds."""
        return self.load().is_compiled(grammar)

    def prepare(self, grammar: Grammar, num_bytes: int = 0) -> None:
        """Compiles the grammar unless it is in the cache. GrammarError: it cannot be used."""
        self.load().compiled(grammar, num_bytes)

    def constraints(self, grammar: Grammar, count: int) -> list[Constraint]:
        """Constraints for the `count` sequences of one request."""
        return self.load().constraints(grammar, count)


class GrammarConstraint:
    def __init__(self, matcher: LLMatcher, vocab_size: int, spent: GrammarTime) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._spent = spent
        self._is_lost = False

    @property
    def problem(self) -> str:
        if self._spent.is_used_up:
            return "the grammar takes too much of the engine's time: make it simpler, or ask for fewer texts"
        return ""

    @property
    def most_drafted(self) -> int:
        return self._spent.most_drafted

    def state(self) -> "MatcherState | None":
        if self._is_over:
            return None
        with self._spent.counted():
            # A copy: proposing must not change the matcher that decides tokens.
            return MatcherState(self._matcher.deep_copy(), self._vocab_size, self._spent)

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        if self._is_lost or self._spent.is_used_up:
            return [no_token(self._vocab_size)]
        tokens = list(drafted[: self.num_allowed(drafted)])
        with self._spent.counted(len(tokens) + 1):
            found = [mask_of(self._matcher, self._vocab_size)]
            # On a copy: a token that is allowed but leads to a dead end puts the matcher into an error state.
            ahead = self._matcher.deep_copy() if tokens else self._matcher
            for token in tokens:
                ahead.consume_token(token)
                found.append(mask_of(ahead, self._vocab_size))
        return found

    def num_allowed(self, drafted: Sequence[int]) -> int:
        if self._is_over:
            return 0
        with self._spent.counted():
            return self._matcher.validate_tokens(list(drafted))

    def advance(self, tokens: Sequence[int]) -> None:
        with self._spent.counted():
            taken = self._matcher.try_consume_tokens(list(tokens))
        # With ignore_eos the matcher may refuse an end token, which no mask had allowed. But it allows a
        # special token that spells the text to come, and then refuses it: it would be sampled for ever.
        is_over = self._matcher.is_error() or self._matcher.is_stopped()
        refused = tokens[taken] if taken < len(tokens) and not is_over else None
        self._is_lost |= refused is not None and _allows(mask_of(self._matcher, self._vocab_size), refused)

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._spent.is_used_up or self._matcher.is_error()


class MatcherState:
    """A grammar state for proposals. Checking a token takes a microsecond, a mask up to a hundred; so `only`
    computes a mask only if the grammar forces bytes, and a single token may be left."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, spent: GrammarTime) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._spent = spent

    def mask(self) -> Allowed:
        with self._spent.counted(1):
            return mask_of(self._matcher, self._vocab_size)

    def only(self) -> int | None:
        if self._spent.is_used_up:
            return None
        with self._spent.counted():
            must_follow = self._matcher.compute_ff_bytes()
        return _only_one(self.mask()) if must_follow else None

    def allows(self, token: int) -> bool:
        with self._spent.counted():
            return self._matcher.validate_tokens([token]) == 1

    def after(self, token: int) -> "MatcherState":
        with self._spent.counted():
            ahead = self._matcher.deep_copy()
            ahead.consume_token(token)
        return MatcherState(ahead, self._vocab_size, self._spent)


def _only_one(mask: Allowed) -> int | None:
    """The only token that a mask allows; None if it allows none or several."""
    found = np.flatnonzero(mask)
    if len(found) != 1:
        return None
    word = int(mask[found[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(found[0]) * 32 + word.bit_length() - 1


def _allows(mask: Allowed, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)
