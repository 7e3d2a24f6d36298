"""Layers that hold one rank's share of a weight: linears, embedding, head.

Knows which rows or columns belong to a rank and where partial results are combined.
Does not know how ranks talk: a `Collective` does that, and `Alone` is the single rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ssd.models.linear import MakeMatMul, apply_tiled, matmul


class Collective(Protocol):
    """What ranks do together."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's x."""
        ...

    def concatenate(self, x: Tensor) -> Tensor:
        """Every rank's x side by side, along the last dimension."""
        ...


class Alone:
    """The collective of a single rank."""

    def sum(self, x: Tensor) -> Tensor:
        return x

    def concatenate(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, slots=True)
class Shard:
    """Which share of each weight this rank holds."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not one of {self.world_size} ranks")

    def share(self, count: int, what: str) -> int:
        if count % self.world_size:
            raise ValueError(f"{what} ({count}) cannot be split over {self.world_size} ranks")
        return count // self.world_size

    def narrow(self, weight: Tensor, dim: int) -> Tensor:
        size = self.share(weight.shape[dim], f"a weight dimension of {tuple(weight.shape)}")
        share = weight.narrow(dim, self.rank * size, size)
        # A copy, so that the other ranks' shares are freed.
        return weight if self.world_size == 1 else share.clone(memory_format=torch.contiguous_format)


Weighted = tuple[Tensor, Tensor | None]
"""A weight and its bias."""


class ColumnParallelLinear:
    """Several projections of one input as one multiply; each rank has a share of every output."""

    def __init__(self, parts: Sequence[Weighted], shard: Shard, make: MakeMatMul = matmul) -> None:
        weight = _joined([shard.narrow(weight, 0) for weight, _ in parts])
        biases = [shard.narrow(bias, 0) for _, bias in parts if bias is not None]
        if biases and len(biases) != len(parts):
            raise ValueError("of merged projections either all have a bias or none has")
        self._multiply = make(weight, torch.cat(biases) if biases else None)

    def __call__(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        return apply_tiled(self._multiply, x, tiles)


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """One under the other. On CPUs in memory of numpy's, which asks for large pages: a million small ones,
    touched for the first time, take seconds."""
    first, num_rows = weights[0], sum(len(each) for each in weights)
    if first.device.type != "cpu":
        return torch.cat(list(weights))
    raw = np.empty(num_rows * first[0].numel() * first.dtype.itemsize, dtype=np.uint8)
    return torch.cat(list(weights), out=torch.from_numpy(raw).view(first.dtype).view(num_rows, -1))


class RowParallelLinear:
    """Each rank has a share of the inputs; the ranks' results are summed, the bias added once."""

    def __init__(
        self, part: Weighted, shard: Shard, collective: Collective, make: MakeMatMul = matmul
    ) -> None:
        weight, bias = part
        self._multiply = make(shard.narrow(weight, 1), bias if shard.rank == 0 else None)
        self._collective = collective

    def __call__(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        return self._collective.sum(apply_tiled(self._multiply, x, tiles))


class VocabParallelEmbedding:
    """Each rank has a range of the vocabulary and contributes zero for the rest."""

    def __init__(self, weight: Tensor, shard: Shard, collective: Collective) -> None:
        self._weight = shard.narrow(weight, 0)
        self._first = shard.rank * self._weight.shape[0]
        self._is_whole = shard.world_size == 1
        self._collective = collective

    def __call__(self, tokens: Tensor) -> Tensor:
        if self._is_whole:
            return self._weight[tokens]
        local = tokens - self._first
        mine = (local >= 0) & (local < self._weight.shape[0])
        rows = self._weight[local.where(mine, 0)]
        return self._collective.sum(rows * mine.unsqueeze(-1))


class VocabParallelHead:
    """Logits of a range of the vocabulary on each rank, gathered on all."""

    def __init__(
        self, weight: Tensor, shard: Shard, collective: Collective, make: MakeMatMul = matmul
    ) -> None:
        self._multiply = make(shard.narrow(weight, 0), None)
        self._collective = collective

    def __call__(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        return self._collective.concatenate(apply_tiled(self._multiply, x, tiles))
