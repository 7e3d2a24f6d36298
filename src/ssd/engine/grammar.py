"""Texts that keep to a grammar: JSON schemas, regular expressions, choices and Lark grammars, by llguidance.

Knows the library and the tokenizer. A constraint follows one text; drafted tokens are tried on a copy,
so that every position of a verification has the mask it would have without a draft.

Compiling may take seconds. It lets other threads go on, so whoever has an engine to keep going does it
elsewhere (`Grammars.prepare`), before the request is added; the engine then finds it compiled. Whoever takes
grammars from strangers has them tried in another process first (`worker/trials.py`).
"""

import threading
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from llguidance import LLMatcher

from ssd.engine.grammar_shelf import Shelf
from ssd.engine.grammar_source import source_of
from ssd.engine.grammar_time import EngineTime, GrammarTime
from ssd.engine.grammar_trial import attempt, mask_of, no_token, trie_of
from ssd.sampling.constraint import Allowed, Constraint, Grammar, GrammarError


class GrammarCompiler:
    def __init__(self, tokenizer: Any, end_ids: Sequence[int], vocab_size: int) -> None:
        self._trie = trie_of(tokenizer_text(tokenizer), end_ids, vocab_size)
        self._vocab_size = vocab_size
        self._shelf: Shelf[Grammar, LLMatcher] = Shelf()
        self._time = EngineTime()

    def is_compiled(self, grammar: Grammar) -> bool:
        return self._shelf.get(grammar) is not None

    def compiled(self, grammar: Grammar, num_bytes: int = 0) -> LLMatcher:
        """GrammarError where a grammar makes no sense. `num_bytes`: what it takes, as far as is known."""
        found = self._shelf.get(grammar)
        if found is None:
            found, refusal = attempt(self._trie, source_of(grammar), self._vocab_size)
            if refusal:
                raise unusable(grammar, refusal)
            self._shelf.put(grammar, found, num_bytes)
        return found

    def constraints(self, grammar: Grammar, count: int) -> list[Constraint]:
        """For the new texts of one request."""
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

    @property
    def settings(self) -> tuple[Any, Sequence[int], int]:
        """Tokenizer, end ids and size of the vocabulary."""
        return self._settings

    def is_prepared(self, grammar: Grammar) -> bool:
        """Whether it is compiled, and stays so for the moment."""
        return self.load().is_compiled(grammar)

    def prepare(self, grammar: Grammar, num_bytes: int = 0) -> None:
        """Compiles what is not compiled; GrammarError where a grammar makes no sense."""
        self.load().compiled(grammar, num_bytes)

    def constraints(self, grammar: Grammar, count: int) -> list[Constraint]:
        """For the new texts of one request."""
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

    def here(self) -> "GrammarPlace | None":
        if self._is_over:
            return None
        with self._spent.counted():
            # A copy: nothing that a guess asks may ever touch what decides.
            return GrammarPlace(self._matcher.deep_copy(), self._vocab_size, self._spent)

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        if self._is_lost or self._spent.is_used_up:
            return [no_token(self._vocab_size)]
        tokens = list(drafted[: self.num_allowed(drafted)])
        with self._spent.counted(len(tokens) + 1):
            found = [mask_of(self._matcher, self._vocab_size)]
            # On a copy: a token that is allowed but leads nowhere spoils a matcher for good.
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
        # An end token that was to be ignored may be refused; no mask had allowed it. But an added token that
        # spells what must come is allowed, and then not taken for that text: it would come for ever.
        is_over = self._matcher.is_error() or self._matcher.is_stopped()
        refused = tokens[taken] if taken < len(tokens) and not is_over else None
        self._is_lost |= refused is not None and _allows(mask_of(self._matcher, self._vocab_size), refused)

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._spent.is_used_up or self._matcher.is_error()


class GrammarPlace:
    """What a guess asks of a grammar, between two forwards: a token's permission takes a microsecond, a mask
    up to a hundred. So a mask is only made where bytes must follow, and may leave a single token."""

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

    def after(self, token: int) -> "GrammarPlace":
        with self._spent.counted():
            ahead = self._matcher.deep_copy()
            ahead.consume_token(token)
        return GrammarPlace(ahead, self._vocab_size, self._spent)


def _only_one(mask: Allowed) -> int | None:
    """The token of a mask that holds one."""
    places = np.flatnonzero(mask)
    if len(places) != 1:
        return None
    word = int(mask[places[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(places[0]) * 32 + word.bit_length() - 1


def _allows(mask: Allowed, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)
