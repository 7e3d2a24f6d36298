"""Finding the few large entries of a wide row without walking all of it in slow operations.

A vocabulary row is cut into groups of 64. The maxima of the groups (one fast pass) tell which groups can
hold anything of interest; only those are looked into. All answers are exact. Knows nothing of sampling.

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
    """The same of some rows, given all as groups [R, G, 64] with their maxima [R, G]."""
    # torch.argmax is documented to return the first of equal maxima, and so keeps the order at both levels.
    best = peaks[rows].argmax(-1)
    return best * GROUP + groups[rows, best].argmax(-1)


def largest_of_rows(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and values [R, k] of the k largest entries of each row [R, V], largest first; ties as they fall."""
    groups = grouped(scores)
    # The k largest entries lie in the k groups of largest maxima.
    reached = groups.amax(-1).topk(min(k, groups.shape[1])).indices
    inner = groups.gather(1, reached.unsqueeze(-1).expand(-1, -1, GROUP)).flatten(1)
    values, places = inner.topk(k)
    return reached.gather(1, places // GROUP) * GROUP + places % GROUP, values


@dataclass(frozen=True, slots=True)
class GroupedScores:
    """A float32 row with its group maxima. Entries of −inf count as absent."""

    groups: Tensor  # [G, 64], padded with −inf
    peaks: Tensor  # [G]

    @classmethod
    def of(cls, scores: Tensor) -> GroupedScores:
        """The row of a one-dimensional float32 tensor, which is not copied where its length allows."""
        groups = grouped(scores)
        return cls(groups, groups.amax(-1))

    @property
    def maximum(self) -> float:
        return float(self.peaks.max())

    def at_least(self, floor: float) -> tuple[Tensor, Tensor]:
        """Ids, ascending, and values of the entries ≥ floor."""
        floor = max(floor, _LOWEST)  # leaves out the padding, and what is forbidden
        reached = (self.peaks >= floor).nonzero().squeeze(1)
        values = self.groups[reached].flatten()
        kept = (values >= floor).nonzero().squeeze(1)
        return reached[kept // GROUP] * GROUP + kept % GROUP, values[kept]

    def kth_largest(self, k: int) -> float:
        """Value of the k-th largest entry, or −inf where there are fewer."""
        # k groups reach the k-th largest peak, so at least k entries do, and the wanted one is among these.
        floor = float(self.peaks.topk(k).values[-1]) if k <= len(self.peaks) else _LOWEST
        values = self.at_least(floor)[1]
        return float(values.topk(k).values[-1]) if k <= len(values) else -float("inf")

    def largest(self, k: int) -> tuple[Tensor, Tensor]:
        """Ids and values of the k largest entries (fewer if there are fewer); equals by ascending id."""
        ids, values = self.at_least(self.kth_largest(k))
        values, order = values.sort(descending=True, stable=True)
        return ids[order[:k]], values[:k]


def grouped(scores: Tensor) -> Tensor:
    """[..., V] as [..., G, 64], padded with −inf; not copied where the width allows."""
    lacking = -scores.shape[-1] % GROUP
    if lacking:
        scores = functional.pad(scores, (0, lacking), value=-float("inf"))
    return scores.reshape(*scores.shape[:-1], scores.shape[-1] // GROUP, GROUP)
