"""A guess from the text itself: what followed the last time the same few tokens stood there.

Costs next to nothing, and is right where texts repeat themselves (code, quotations). Knows tokens.
"""

from array import array
from collections.abc import Sequence
from itertools import takewhile

LONGEST, SHORTEST = 3, 2
WINDOW = 2048
"""Tokens looked back over."""


def ngram_guess(prompt: Sequence[int], output: Sequence[int], count: int) -> tuple[int, ...]:
    """Up to `count` tokens that followed the latest earlier occurrence of the text's end; none if new."""
    generated = list(output[-WINDOW:])
    missing = WINDOW - len(generated)
    return guess_after(array("i", [*prompt[-missing:], *generated] if missing else generated), count)


def guess_after(text: "array[int]", count: int) -> tuple[int, ...]:
    """The same for a text that is one array: a host asks this of every row without a draft's tokens."""
    recent = text[-WINDOW:]
    packed = recent.tobytes()
    for size in range(LONGEST, SHORTEST - 1, -1):
        start = _latest(packed, size * recent.itemsize, recent.itemsize)
        if start >= 0:
            return tuple(recent[start + size : start + size + count])
    return ()


def right_guesses(prompt: Sequence[int], written: Sequence[int], count: int) -> list[int]:
    """By place of what was written: how many tokens from there on a guess of up to `count` gets right."""
    found = []
    for place in range(len(written)):
        guess = ngram_guess(prompt, written[:place], count)
        pairs = zip(guess, written[place:], strict=False)
        found.append(len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))))
    return found


def _latest(text: bytes, length: int, item: int) -> int:
    """Where, counted in items, the last `length` bytes stood before, something following; negative: nowhere.

    Bytes are searched, since that is many times faster than lists; a find must lie on a border of items.
    """
    end, last = text[-length:], len(text) - item
    while (found := text.rfind(end, 0, last)) % item and found >= 0:
        last = found + length - 1
    return found // item
