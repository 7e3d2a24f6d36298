"""One attempt to compile a grammar: the same steps wherever it is made.

Knows llguidance only, so that a process that tries grammars for others (`worker/trial_program.py`) is small
and starts at once: nothing here imports torch or transformers.
"""

from collections.abc import Sequence

import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

_LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000, step_max_items=5_000)
"""States, of 1 to 2 KB each, also come up while a text grows: one that needs more ends in an error.

Items are what a mask's time goes into. So many take some 10 ms, and no schema or grammar of the tests needs
2,000; by the library's own limit of 50,000 one of 28 KB made masks of 0.2 s.
"""


def trie_of(tokenizer: str, end_ids: Sequence[int], vocab_size: int) -> LLTokenizer:
    """A tokenizer as llguidance has it, from its JSON. For a large vocabulary that takes seconds."""
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(end_ids) or None)


def attempt(trie: LLTokenizer, source: str, vocab_size: int) -> tuple[LLMatcher, str]:
    """The matcher of a grammar, and why it cannot be used; empty: it can."""
    matcher = LLMatcher(trie, source, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        return matcher, matcher.get_error()[:500]
    start = matcher.deep_copy()
    mask_of(start, vocab_size)
    return matcher, _why_nothing_follows(start.get_error()) if start.is_error() else ""


def _why_nothing_follows(error: str) -> str:
    is_limit = "too many" in error.lower()
    return (
        f"it is too complex ({error.partition(';')[0][:200]}): simplify it" if is_limit else "no text fits it"
    )


def mask_of(matcher: LLMatcher, vocab_size: int) -> NDArray[np.int32]:
    """One bit for each token: whether it may come next."""
    bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
    llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
    if matcher.is_error():
        # It led nowhere, or grew too complex. The library would end the text here, as if it were complete.
        bits.fill(0)
    allowed: NDArray[np.int32] = bits[0]
    return allowed


def no_token(vocab_size: int) -> NDArray[np.int32]:
    """The mask that leaves none."""
    bits: NDArray[np.int32] = llguidance.numpy.allocate_token_bitmask(1, vocab_size)[0]
    bits.fill(0)
    return bits
