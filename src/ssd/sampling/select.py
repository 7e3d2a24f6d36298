"""Finds the few large entries of a wide row fast.

A row is cut into groups of 64. The maxima of the groups (one fast pass) show which groups can contain large
entries; only those are searched. All results are exact. Does not know sampling.

Measured for 151,936 tokens on one core: torch.argmax 630 µs, torch.topk 1–2 ms, a comparison 270 µs, a sort
28 ms; the pass over group maxima 25 µs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 64
_LOWEST = float(torch.finfo(torch.float32).min)


def argmax(scores: Tensor) -> Tensor:
    """Index [R] of the largest entry of each row [R, V]; the lowest index wins a tie, also among −inf."""
    groups = grouped(scores)
    return argmax_of_groups(groups, groups.amax(-1), torch.arange(len(groups), device=groups.device))


def argmax_of_groups(groups: Tensor, peaks: Tensor, rows: Tensor) -> Tensor:
    """`argmax` of selected rows, given the groups [R, G, 64] of all rows and their maxima [R, G]."""
    # torch.argmax is documented to return the first of equal maxima, so the lowest index wins at both levels.
    best = peaks[rows].argmax(-1)
    return best * GROUP + groups[rows, best].argmax(-1)


def largest_of_rows(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and values [R, k] of the k largest entries of each row [R, V], largest first; ties in any order."""
    reached, inner = _reached(scores, k)
    values, indices = inner.topk(k)
    return reached.gather(1, indices // GROUP) * GROUP + indices % GROUP, values


def largest_values(scores: Tensor, k: int) -> Tensor:
    """The values of `largest_of_rows`, for less work."""
    return _reached(scores, k)[1].topk(k).values


def _reached(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The groups of each row that contain its k largest entries: their numbers, and their entries."""
    groups = grouped(scores)
    # These are the k groups with the largest maxima.
    reached = groups.amax(-1).topk(min(k, groups.shape[1])).indices
    return reached, groups.gather(1, reached.unsqueeze(-1).expand(-1, -1, GROUP)).flatten(1)


@dataclass(frozen=True, slots=True)
class GroupedScores:
    """A float32 row with its group maxima. Entries of −inf are ignored."""

    groups: Tensor  # [G, 64], padded with −inf
    peaks: Tensor  # [G]

    @classmethod
    def of(cls, scores: Tensor) -> GroupedScores:
        """From a one-dimensional float32 tensor; copies it only if it needs padding."""
        groups = grouped(scores)
        return cls(groups, groups.amax(-1))

    @property
    def maximum(self) -> float:
        return float(self.peaks.max())

    def at_least(self, floor: float) -> tuple[Tensor, Tensor]:
        """Ids, ascending, and values of the entries ≥ floor."""
        floor = max(floor, _LOWEST)  # excludes padding and forbidden tokens
        reached = (self.peaks >= floor).nonzero().squeeze(1)
        values = self.groups[reached].flatten()
        chosen = (values >= floor).nonzero().squeeze(1)
        return reached[chosen // GROUP] * GROUP + chosen % GROUP, values[chosen]

    def kth_largest(self, k: int) -> float:
        """Value of the k-th largest entry; −inf if there are fewer."""
        # k groups reach the k-th largest peak, so at least k entries do, among them the k-th largest.
        floor = float(self.peaks.topk(k).values[-1]) if k <= len(self.peaks) else _LOWEST
        values = self.at_least(floor)[1]
        return float(values.topk(k).values[-1]) if k <= len(values) else -float("inf")

    def largest(self, k: int) -> tuple[Tensor, Tensor]:
        """Ids and values of the k largest entries, or of all if fewer; equal ones by ascending id."""
        ids, values = self.at_least(self.kth_largest(k))
        values, order = values.sort(descending=True, stable=True)
        return ids[order[:k]], values[:k]


def grouped(scores: Tensor) -> Tensor:
    """[..., V] as [..., G, 64], padded with −inf; a view if no padding is needed."""
    lacking = -scores.shape[-1] % GROUP
    if lacking:
        scores = functional.pad(scores, (0, lacking), value=-float("inf"))
    return scores.reshape(*scores.shape[:-1], scores.shape[-1] // GROUP, GROUP)
