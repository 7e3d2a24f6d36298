"""A runner whose logits are a function of all tokens before: a wrong prefix, slot or row shows.

It keeps tokens in slots of blocks as a real runner keeps keys, so what a drafter or a verification wrote for
rejected tokens is there until it is written over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssd.attention.rows import Row
from tests.row_runner import RowRunner

LogitsOf = Callable[[tuple[int, ...]], Tensor]
BLOCK_SIZE = 4


class TableRunner(RowRunner):
    def __init__(self, logits_of: LogitsOf) -> None:
        self._logits_of = logits_of
        self._slots: dict[int, int] = {}

    def forward(self, rows: Sequence[Row]) -> Tensor:
        return torch.stack([scores for row in rows for scores in self._row(row)])

    def _row(self, row: Row) -> list[Tensor]:
        end = row.start + len(row.tokens)
        slots = [row.blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(end)]
        self._slots.update(zip(slots[row.start :], row.tokens, strict=True))
        tokens = tuple(self._slots[slot] for slot in slots)
        return [self._logits_of(tokens[:count]) for count in range(end - row.num_logits + 1, end + 1)]
