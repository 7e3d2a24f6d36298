"""Static buffers for the input and the results of captured steps.

All captured steps share the buffers of the largest one; a smaller step uses their first rows. Only one step
runs at a time, and its results must be copied before the next. Knows buffers. Does not know what is computed.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ssd.attention.batch import Batch
from ssd.sampling import Draws, Truncation

TENSORS = tuple(each.name for each in fields(Batch) if each.type is Tensor)
"""The fields of a batch that are copied for each step; the others are constants of the captured step."""


@dataclass(frozen=True, slots=True)
class StaticBuffers:
    batch: Batch
    draws: Draws
    logits: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, padding: Batch, num_columns: int, device: torch.device) -> "StaticBuffers":
        """New buffers of the shape of the padding."""
        size = padding.num_rows
        return cls(
            replace(padding, **{name: getattr(padding, name).to(device).clone() for name in TENSORS}),
            draws_of_padding(size, device),
            torch.zeros(size, num_columns, device=device),
            torch.zeros(size, dtype=torch.long, device=device),
        )

    def leading(self, padding: Batch) -> "StaticBuffers":
        """Views of the shape of this smaller padding."""
        views: dict[str, Any] = {
            name: _corner(getattr(self.batch, name), getattr(padding, name)) for name in TENSORS
        }
        size = slice(padding.num_rows)
        return StaticBuffers(
            replace(padding, **views), self.draws.at(size), self.logits[size], self.tokens[size]
        )

    def fits(self, batch: Batch) -> bool:
        """Whether the batch has the captured shape. A prompt may have as many rows, but other tiles."""
        static = self.batch
        return (
            batch.num_rows == static.num_rows
            and len(batch.wanted) == len(static.wanted)
            and (batch.tiles, batch.head_tiles) == (static.tiles, static.head_tiles)
            and all(has >= needs for has, needs in zip(static.tables.shape, batch.tables.shape, strict=True))
        )

    def load(self, batch: Batch, draws: Draws | None) -> None:
        """Copies the input. Tables may be smaller than the buffers: no row refers to the rest."""
        for name in TENSORS:
            given = getattr(batch, name)
            _corner(getattr(self.batch, name), given).copy_(given, non_blocking=True)
        if draws is not None:
            _load_draws(draws, self.draws)


def draws_of_padding(size: int, device: torch.device) -> Draws:
    """Draws of greedy rows, for padding."""
    truncation = Truncation(
        torch.full((size,), -torch.inf, dtype=torch.float64, device=device),
        torch.zeros(size, dtype=torch.long, device=device),
        torch.ones(size, dtype=torch.float64, device=device),
    )
    seeds, positions = (torch.zeros(size, dtype=torch.long, device=device) for _ in range(2))
    return Draws(seeds, positions, torch.zeros(size, device=device), truncation)


def _corner(buffer: Tensor, given: Tensor) -> Tensor:
    return buffer[tuple(slice(length) for length in given.shape)]


def _load_draws(given: Draws, static: Draws) -> None:
    """Copies the draws of the first rows. Tokens of the padding rows after them are not used."""
    pairs = [(getattr(given, name), getattr(static, name)) for name in ("seeds", "positions", "temperatures")]
    if given.truncation is not None and static.truncation is not None:
        names = [each.name for each in fields(Truncation)]
        pairs += [(getattr(given.truncation, name), getattr(static.truncation, name)) for name in names]
    for source, buffer in pairs:
        buffer[: len(source)].copy_(source, non_blocking=True)
