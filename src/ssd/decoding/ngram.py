"""A guess from the text itself: what followed the last time the same few tokens stood there.

Costs next to nothing, and is right where texts repeat themselves (code, quotations). Knows tokens.
"""

from collections.abc import Sequence

_LONGEST, _SHORTEST = 3, 2
_WINDOW = 2048
"""Tokens looked back over."""


def ngram_guess(prompt: Sequence[int], output: Sequence[int], count: int) -> tuple[int, ...]:
    """Up to `count` tokens that followed the latest earlier occurrence of the text's end; none if new."""
    generated = list(output[-_WINDOW:])
    missing = _WINDOW - len(generated)
    recent = [*prompt[-missing:], *generated] if missing else generated
    for size in range(_LONGEST, _SHORTEST - 1, -1):
        end = recent[-size:]
        for start in range(len(recent) - size - 1, -1, -1):
            if recent[start] == end[0] and recent[start : start + size] == end:
                return tuple(recent[start + size : start + size + count])
    return ()
