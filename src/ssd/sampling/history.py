"""The tokens before a position, without copying them.

Each decided position of a sequence has a row with the tokens before it, and verifying drafted tokens needs
several rows at once. All rows of a sequence share one list; each adds an offset and the drafted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

import numpy as np
from numpy.typing import NDArray


class History(Sequence[int]):
    """`base[start:stop]` followed by `more`. The history does not change when the base grows."""

    __slots__ = ("_base", "_more", "_start", "_stop")

    def __init__(self, base: Sequence[int], start: int = 0, more: Sequence[int] = ()) -> None:
        self._base, self._start, self._stop, self._more = base, start, len(base), more

    def followed_by(self, more: Sequence[int]) -> History:
        longer = History(self._base, self._start, [*self._more, *more])
        longer._stop = self._stop
        return longer

    @property
    def num_decided(self) -> int:
        """Number of tokens that come from the base."""
        return self._stop - self._start

    def decided_from(self, first: int) -> Sequence[int]:
        """The tokens of the base from index `first` on."""
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
        indices = range(len(self))[index]
        if isinstance(indices, int):
            return self._at(indices)
        if indices.step == 1:
            return self._run(indices.start, indices.stop)
        return [self._at(each) for each in indices]

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

    def _at(self, index: int) -> int:
        num_base = self._stop - self._start
        return self._base[self._start + index] if index < num_base else self._more[index - num_base]
