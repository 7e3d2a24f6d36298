"""Where input and results of captured steps lie: memory that stays, and is written anew for each step.

One set for all steps: of the buffers of the largest, a smaller step has the first rows. No two run at a time,
and whoever wants a result copies it. Knows tensors' places, not what is computed.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ssd.attention.batch import Batch
from ssd.sampling import Draws, Truncation

TENSORS = tuple(each.name for each in fields(Batch) if each.type is Tensor)
"""Of a batch, what is copied for each step; all else of it is part of what was captured."""


@dataclass(frozen=True, slots=True)
class StaticBuffers:
    batch: Batch
    draws: Draws
    logits: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, padding: Batch, num_columns: int, device: torch.device) -> "StaticBuffers":
        """In memory of its own, with room for what the padding has room for."""
        size = padding.num_rows
        return cls(
            replace(padding, **{name: getattr(padding, name).to(device).clone() for name in TENSORS}),
            draws_of_padding(size, device),
            torch.zeros(size, num_columns, device=device),
            torch.zeros(size, dtype=torch.long, device=device),
        )

    def leading(self, padding: Batch) -> "StaticBuffers":
        """Views with as much room as this smaller padding."""
        views: dict[str, Any] = {
            name: _corner(getattr(self.batch, name), getattr(padding, name)) for name in TENSORS
        }
        size = slice(padding.num_rows)
        return StaticBuffers(
            replace(padding, **views), self.draws.at(size), self.logits[size], self.tokens[size]
        )

    def fits(self, batch: Batch) -> bool:
        """Whether it is of the shape that was captured: rows of a prompt may be as many, in other tiles."""
        mine = self.batch
        return (
            batch.num_rows == mine.num_rows
            and len(batch.wanted) == len(mine.wanted)
            and (batch.tiles, batch.head_tiles) == (mine.tiles, mine.head_tiles)
            and all(has >= needs for has, needs in zip(mine.tables.shape, batch.tables.shape, strict=True))
        )

    def load(self, batch: Batch, draws: Draws | None) -> None:
        """Tables may be smaller: what lies behind is of no sequence that a row names."""
        for name in TENSORS:
            given = getattr(batch, name)
            _corner(getattr(self.batch, name), given).copy_(given, non_blocking=True)
        if draws is not None:
            _load_draws(draws, self.draws)


def draws_of_padding(size: int, device: torch.device) -> Draws:
    """Greedy, whatever seed and position."""
    truncation = Truncation(
        torch.full((size,), -torch.inf, dtype=torch.float64, device=device),
        torch.zeros(size, dtype=torch.long, device=device),
        torch.ones(size, dtype=torch.float64, device=device),
    )
    seeds, positions = (torch.zeros(size, dtype=torch.long, device=device) for _ in range(2))
    return Draws(seeds, positions, torch.zeros(size, device=device), truncation)


def _corner(place: Tensor, given: Tensor) -> Tensor:
    return place[tuple(slice(length) for length in given.shape)]


def _load_draws(given: Draws, static: Draws) -> None:
    """Of the first rows; what padding behind them draws is nobody's."""
    pairs = [(getattr(given, name), getattr(static, name)) for name in ("seeds", "positions", "temperatures")]
    if given.truncation is not None and static.truncation is not None:
        names = [each.name for each in fields(Truncation)]
        pairs += [(getattr(given.truncation, name), getattr(static.truncation, name)) for name in names]
    for source, place in pairs:
        place[: len(source)].copy_(source, non_blocking=True)
