"""Tokens that stand before a position, without copying them.

A sequence of 30,000 tokens has a row of its own for every position it decides, several at a
time when drafted tokens are verified. A row sees the same list, from an offset, and a few
tokens more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

import numpy as np
from numpy.typing import NDArray


class History(Sequence[int]):
    """`base[start:stop]` followed by `more`; the base may grow afterwards, the history does not."""

    __slots__ = ("_base", "_more", "_start", "_stop")

    def __init__(self, base: Sequence[int], start: int = 0, more: Sequence[int] = ()) -> None:
        self._base, self._start, self._stop, self._more = base, start, len(base), more

    def followed_by(self, more: Sequence[int]) -> History:
        longer = History(self._base, self._start, [*self._more, *more])
        longer._stop = self._stop
        return longer

    @property
    def num_decided(self) -> int:
        """How many of the tokens stand in the base."""
        return self._stop - self._start

    def decided_from(self, first: int) -> Sequence[int]:
        """Those from the first-th on."""
        return self._base[self._start + first : self._stop]

    @property
    def drafted(self) -> Sequence[int]:
        """The tokens that follow the base."""
        return self._more

    def __len__(self) -> int:
        return self._stop - self._start + len(self._more)

    def __iter__(self) -> Iterator[int]:
        return chain(islice(self._base, self._start, self._stop), self._more)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return self._at(places)
        if places.step == 1:
            return self._run(places.start, places.stop)
        return [self._at(place) for place in places]

    def __array__(
        self,
        dtype: np.dtype[np.int64] | None = None,
        copy: bool | None = None,  # noqa: FBT001
    ) -> NDArray[np.int64]:
        return np.array([*self._base[self._start : self._stop], *self._more], dtype=dtype or np.int64)

    def _run(self, first: int, last: int) -> list[int]:
        num_base = self._stop - self._start
        head = self._base[self._start + first : self._start + min(last, num_base)]
        return [*head, *self._more[max(0, first - num_base) : max(0, last - num_base)]]

    def _at(self, place: int) -> int:
        num_base = self._stop - self._start
        return self._base[self._start + place] if place < num_base else self._more[place - num_base]
