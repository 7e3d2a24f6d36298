"""Many wide rows at once, of which only the entries that reach a floor are looked at. CPU only.

The entries of all rows lie one after the other in flat arrays, row by row, so that no work is done row by
row in Python. numpy holds them: on a CPU its views of a tensor cost nothing, and a call costs a third of
torch's. Rows are scores z/T, but whole rows are never divided: division by a positive number keeps the order,
so the group maxima of z/T are those of z, divided. Knows nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.sampling.select import GROUP

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

ABSENT = np.float32(np.nan)
"""The floor of a row that is not looked at: nothing reaches it."""

_LOWEST = np.float32(np.finfo(np.float32).min)
# Groups worked on at once where all of a row may have to be: in float64 they fill a core's L2 cache.
_PIECE = 2048
_SAMPLED_GROUPS = 32


@dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of some rows: by row, then by id, both ascending."""

    rows: Ints
    ids: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def starts(self) -> Ints:
        """Where each row that has entries begins."""
        return np.flatnonzero(np.diff(self.rows, prepend=-1))

    def of(self, rows: Flags) -> Entries:
        """Those of the rows that are flagged."""
        if rows.all():
            return self
        kept = rows[self.rows]
        return Entries(self.rows[kept], self.ids[kept], self.values[kept])

    def descending(self) -> Entries:
        """The same with each row's values in descending order; ids are lost.

        One sort of integers: the row above, the value below as an integer of the same order.
        """
        bits = self.values.view(np.int32).astype(np.int64)
        keys = (self.rows << 32) + (0x7FFFFFFF - (bits ^ ((bits >> 31) & 0x7FFFFFFF)))
        keys.sort()
        bits = 0x7FFFFFFF - (keys & 0xFFFFFFFF)
        values = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int32).view(np.float32)
        return Entries(keys >> 32, np.empty(0, np.int64), values)


class BatchedScores:
    """Rows of logits over their temperatures."""

    def __init__(self, groups: Tensor, peaks: Tensor, numbers: Ints, temperatures: Floats) -> None:
        """Groups [*, G, 64] of logits, their maxima [*, G]; which rows [R], and temperatures [R] above 0."""
        self._groups = groups
        self._flat = groups.reshape(-1, GROUP)
        self._numbers = numbers
        self._temperatures = temperatures
        chosen: Floats = peaks.float().numpy()[numbers]
        self.peaks = np.divide(chosen, temperatures[:, None], out=chosen)
        self.maxima: Floats = self.peaks.max(axis=1)

    @property
    def width(self) -> int:
        """Entries of a row, padding included."""
        return int(self.peaks.shape[1]) * GROUP

    def __len__(self) -> int:
        return len(self.peaks)

    def reach(self, floors: Floats) -> NDArray[np.float64]:
        """Share of each row's groups that hold an entry of at least its floor."""
        shares: NDArray[np.float64] = self._reached(floors).mean(axis=1)
        return shares

    def estimated_share(self, floors: Floats, rows: Flags) -> NDArray[np.float64]:
        """Share of the entries that reach the floor, from a sample of the flagged rows; 0 for others."""
        shares = np.zeros(len(self))
        chosen = np.flatnonzero(rows)
        if len(chosen):
            some = self._groups[:, :: max(1, self.peaks.shape[1] // _SAMPLED_GROUPS)]
            if len(chosen) < len(some):
                some = some[torch.from_numpy(self._numbers[chosen])]
            borders = np.maximum(floors, _LOWEST)[chosen] * self._temperatures[chosen]
            shares[chosen] = (some.float().numpy() >= borders[:, None, None]).mean(axis=(1, 2))
        return shares

    def kth_peaks(self, k: Ints) -> Floats:
        """The k-th largest group maximum of each row, 1 ≤ k ≤ G: at least k entries reach it."""
        num_groups = self.peaks.shape[1]
        ordered = np.partition(self.peaks, np.unique(num_groups - k), axis=1)
        found: Floats = ordered[np.arange(len(self)), num_groups - k]
        return found

    def at_least(self, floors: Floats) -> Entries:
        """The entries that reach their row's floor. −inf counts as absent; `ABSENT` skips a row."""
        owners, groups, taken = self._taken(np.flatnonzero(self._reached(floors)))
        values: Floats = taken.numpy()
        kept = np.flatnonzero(values >= np.maximum(floors, _LOWEST)[owners][:, None])
        inside = kept // GROUP
        return Entries(owners[inside], groups[inside] * GROUP + kept % GROUP, values.ravel()[kept])

    def pieces(self, floors: Floats) -> Iterator[tuple[Ints, Tensor]]:
        """The groups [N, 64] that `at_least` would look into, with their rows [N]: some at a time."""
        reached = np.flatnonzero(self._reached(floors))
        for start in range(0, len(reached), _PIECE):
            owners, _, values = self._taken(reached[start : start + _PIECE])
            yield owners, values

    def _reached(self, floors: Floats) -> Flags:
        reached: Flags = self.peaks >= np.maximum(floors, _LOWEST)[:, None]
        return reached

    def _taken(self, places: Ints) -> tuple[Ints, Ints, Tensor]:
        """Rows, numbers and scores [N, 64] of some groups, counted through all rows."""
        num_groups = self.peaks.shape[1]
        owners, groups = np.divmod(places, num_groups)
        there = self._numbers[owners] * num_groups + groups
        if len(there) and there[-1] - there[0] == len(there) - 1:
            # All that lies between: nothing needs to be gathered.
            raw = self._flat[there[0] : there[-1] + 1]
        else:
            raw = self._flat.index_select(0, torch.from_numpy(there))
        return owners, groups, raw.float() / torch.from_numpy(self._temperatures[owners]).unsqueeze(1)
