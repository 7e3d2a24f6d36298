"""Finds the entries of many wide rows that reach a floor, without visiting the others. CPU only.

The entries of all rows are concatenated in flat numpy arrays, so there is no Python loop over rows. On a CPU
numpy's views of a tensor cost nothing, and a call takes a third of torch's time. Rows are scores z/T, but
whole rows are never divided: division by a positive number keeps the order, so the group maxima of z/T are
the divided maxima of z. Does not know sampling.
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
"""The floor of a row to skip: no entry reaches it."""

_LOWEST = np.float32(np.finfo(np.float32).min)
# Groups per piece when whole rows may be needed: in float64 they fill a core's L2 cache.
_PIECE = 2048
_SAMPLED_GROUPS = 32


@dataclass(frozen=True, slots=True)
class Entries:
    """Selected entries of selected rows, sorted by row, then by id, ascending."""

    rows: Ints
    ids: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def starts(self) -> Ints:
        """Index of the first entry of each row that has entries."""
        return np.flatnonzero(np.diff(self.rows, prepend=-1))

    def of(self, rows: Flags) -> Entries:
        """The entries of the flagged rows."""
        if rows.all():
            return self
        is_kept = rows[self.rows]
        return Entries(self.rows[is_kept], self.ids[is_kept], self.values[is_kept])

    def descending(self) -> Entries:
        """The same entries with each row's values in descending order and without ids.

        Sorts integers: the row in the upper bits, the value as an order-preserving integer in the lower ones.
        """
        bits = self.values.view(np.int32).astype(np.int64)
        keys = (self.rows << 32) + (0x7FFFFFFF - (bits ^ ((bits >> 31) & 0x7FFFFFFF)))
        keys.sort()
        bits = 0x7FFFFFFF - (keys & 0xFFFFFFFF)
        values = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int32).view(np.float32)
        return Entries(keys >> 32, np.empty(0, np.int64), values)


class BatchedScores:
    """Rows of logits divided by their temperatures."""

    def __init__(self, groups: Tensor, peaks: Tensor, numbers: Ints, temperatures: Floats) -> None:
        """Takes groups [*, G, 64] of logits, their maxima [*, G], row numbers [R], temperatures [R] > 0."""
        self._groups = groups
        self._flat = groups.reshape(-1, GROUP)
        self._numbers = numbers
        self._temperatures = temperatures
        chosen: Floats = peaks.float().numpy()[numbers]
        self.peaks = np.divide(chosen, temperatures[:, None], out=chosen)
        self.maxima: Floats = self.peaks.max(axis=1)

    @property
    def width(self) -> int:
        """Number of entries in a row, with padding."""
        return int(self.peaks.shape[1]) * GROUP

    def __len__(self) -> int:
        return len(self.peaks)

    def reach(self, floors: Floats) -> NDArray[np.float64]:
        """Share of each row's groups that contain an entry of at least its floor."""
        shares: NDArray[np.float64] = self._reached(floors).mean(axis=1)
        return shares

    def estimated_share(self, floors: Floats, rows: Flags) -> NDArray[np.float64]:
        """Estimated share of each flagged row's entries that reach its floor, from a sample; 0 for others."""
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
        peaks: Floats = ordered[np.arange(len(self)), num_groups - k]
        return peaks

    def at_least(self, floors: Floats) -> Entries:
        """The entries that reach their row's floor. Entries of −inf are left out; `ABSENT` skips a row."""
        owners, groups, taken = self._taken(np.flatnonzero(self._reached(floors)))
        values: Floats = taken.numpy()
        chosen = np.flatnonzero(values >= np.maximum(floors, _LOWEST)[owners][:, None])
        inside = chosen // GROUP
        return Entries(owners[inside], groups[inside] * GROUP + chosen % GROUP, values.ravel()[chosen])

    def pieces(self, floors: Floats) -> Iterator[tuple[Ints, Tensor]]:
        """The groups [N, 64] with an entry that reaches its row's floor, and their rows [N], in pieces."""
        reached = np.flatnonzero(self._reached(floors))
        for start in range(0, len(reached), _PIECE):
            owners, _, values = self._taken(reached[start : start + _PIECE])
            yield owners, values

    def _reached(self, floors: Floats) -> Flags:
        reached: Flags = self.peaks >= np.maximum(floors, _LOWEST)[:, None]
        return reached

    def _taken(self, indices: Ints) -> tuple[Ints, Ints, Tensor]:
        """Rows, numbers within the row, and scores [N, 64] of groups; indices count through all rows."""
        num_groups = self.peaks.shape[1]
        owners, groups = np.divmod(indices, num_groups)
        stored = self._numbers[owners] * num_groups + groups
        if len(stored) and stored[-1] - stored[0] == len(stored) - 1:
            # Adjacent groups: a slice avoids the copy.
            raw = self._flat[stored[0] : stored[-1] + 1]
        else:
            raw = self._flat.index_select(0, torch.from_numpy(stored))
        return owners, groups, raw.float() / torch.from_numpy(self._temperatures[owners]).unsqueeze(1)
