"""Where a text has stood before: `ngram_guess` for a text that grows, without looking through it each time.

Of every two and three neighbouring tokens it keeps where the latest stand that something follows. A path
behind the text is looked through as it is: it is short. Knows tokens.
"""

from collections.abc import Sequence

from ssd.draft.ngram import LONGEST, SHORTEST, WINDOW

Gram = tuple[int, ...]

_MOST_KEPT = 2 * WINDOW * (LONGEST - SHORTEST + 1)
"""Beyond that, what stood before the window is forgotten: it is never looked up."""


class Repeats:
    def __init__(self, tokens: list[int]) -> None:
        """Of a text that whoever holds it extends. What it has gained is looked at when it is asked for."""
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
        """Up to `count` tokens that followed when what ends the text and the path stood there before."""
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
