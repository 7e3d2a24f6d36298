"""Guesses the next tokens from the text itself: what followed the last time the same few tokens stood there.

Costs next to nothing, and is right where texts repeat themselves (code, quotations). `ngram_guess` searches a
text; `Repeats` keeps an index of a text that grows, so that a guess takes no search. Knows only tokens.
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


Gram = tuple[int, ...]

_MOST_KEPT = 2 * WINDOW * (LONGEST - SHORTEST + 1)
"""Beyond that, what stood before the window is forgotten: it is never looked up."""


class Repeats:
    def __init__(self, tokens: list[int]) -> None:
        """Keeps a reference to `tokens`, which its owner extends; indexes new tokens when it is asked."""
        self._tokens = tokens
        self._num_known = max(0, len(tokens) - WINDOW)
        self._starts: dict[Gram, int] = {}
        """Of each few tokens: where they stood last, something following."""

    def _note_growth(self) -> None:
        text, end = self._tokens, len(self._tokens)
        for size in range(SHORTEST, LONGEST + 1):
            first = max(0, self._num_known - size)
            last = max(first, end - size)
            grams = zip(*(text[first + place : last + place] for place in range(size)), strict=True)
            self._starts.update(zip(grams, range(first, last), strict=True))
        self._num_known = end
        if len(self._starts) > _MOST_KEPT:
            oldest = end - WINDOW
            self._starts = {gram: start for gram, start in self._starts.items() if start >= oldest}

    @property
    def num_kept(self) -> int:
        return len(self._starts)

    def guess(self, path: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that followed when the end of the text and the path occurred before."""
        text, length = self._tokens, len(self._tokens)
        if length > self._num_known:
            self._note_growth()
        # What may begin in the text and reach into the path is found here; the rest, in what is kept.
        base = max(0, length - LONGEST)
        tail = [*text[base:], *path]
        if tuple(tail[-SHORTEST:]) not in self._starts and tail[-1] not in tail[:-1]:
            return []
        for size in range(LONGEST, SHORTEST - 1, -1):
            if len(tail) < size:
                continue
            end = tuple(tail[-size:])
            start = self._latest(end, tail, base)
            if start >= max(0, length + len(path) - WINDOW):
                first = start + size
                found = text[first : first + count]
                return found if len(found) == count else [*found, *path[max(0, first - length) :]][:count]
        return []

    def _latest(self, end: Gram, tail: list[int], base: int) -> int:
        """Where it stood last before the end of all; −1: nowhere."""
        size = len(end)
        if end[-1] in tail[:-1]:
            for start in range(len(tail) - size - 1, -1, -1):
                if tuple(tail[start : start + size]) == end:
                    return base + start
        return self._starts.get(end, -1)
