"""Compiles a grammar with llguidance, the same way in the engine and in the sandbox.

Imports neither torch nor transformers, so that the sandbox process (`worker/sandbox_program.py`) is small
and starts quickly.
"""

from collections.abc import Sequence

import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

_LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000, step_max_items=5_000)
"""Lexer states take 1 to 2 KB each and are also created while a text grows; a text that needs more fails.

The time of a mask depends on the parser's items: 5,000 take some 10 ms, and no schema or grammar of the tests
needs 2,000. With the library's limit of 50,000, masks of a 28 KB grammar took 0.2 s.
"""


def trie_of(tokenizer: str, end_ids: Sequence[int], vocab_size: int) -> LLTokenizer:
    """llguidance's tokenizer, from a tokenizer's JSON. Takes seconds for a large vocabulary."""
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(end_ids) or None)


def compile_source(trie: LLTokenizer, source: str, vocab_size: int) -> tuple[LLMatcher, str]:
    """The grammar's matcher, and the reason why it cannot be used; empty: it can."""
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
    """One bit for each token: whether it may follow. All zero if the matcher has failed."""
    bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
    llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
    if matcher.is_error():
        # The text is a dead end, or too complex. The library's mask would end it as if it were complete.
        bits.fill(0)
    allowed: NDArray[np.int32] = bits[0]
    return allowed


def no_token(vocab_size: int) -> NDArray[np.int32]:
    """The mask that allows no token."""
    bits: NDArray[np.int32] = llguidance.numpy.allocate_token_bitmask(1, vocab_size)[0]
    bits.fill(0)
    return bits
