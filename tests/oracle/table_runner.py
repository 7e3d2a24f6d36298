"""A runner whose logits are a function of all tokens before: a wrong prefix, slot or row shows.

It keeps tokens in slots of blocks as a real runner keeps keys, so what a drafter or a verification wrote for
rejected tokens is there until it is written over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssd.attention.inputs import Branches, SequenceInput
from tests.row_runner import RowRunner

LogitsOf = Callable[[tuple[int, ...]], Tensor]
BLOCK_SIZE = 4


class TableRunner(RowRunner):
    def __init__(self, logits_of: LogitsOf) -> None:
        self._logits_of = logits_of
        self._slots: dict[int, int] = {}

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        return torch.stack([scores for row in rows for scores in self._row(row)])

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """What a KV pool does with keys."""
        found = [self._slots[slot] for slot in sources.tolist()]
        self._slots.update(zip(destinations.tolist(), found, strict=True))

    def _nodes(self, row: SequenceInput, branches: Branches) -> list[Tensor]:
        """Each sees the prefix and the nodes of its path, at the position that these make."""
        self._slots.update(
            {
                branches.tree_start + node: token
                for node, token in zip(branches.nodes, row.tokens, strict=True)
            }
        )
        found = []
        for position, path in zip(branches.positions, branches.paths, strict=True):
            places = [branches.tree_start + node for node in range(path.bit_length()) if path >> node & 1]
            prefix = [_slot(row, place) for place in range(branches.num_prefix)]
            tokens = tuple(self._slots[slot] for slot in (*prefix, *places))
            if position != len(tokens) - 1:
                raise ValueError(f"a node that sees {len(tokens)} tokens stands at position {position}")
            found.append(self._logits_of(tokens))
        return found[len(found) - row.num_logits :]

    def _row(self, row: SequenceInput) -> list[Tensor]:
        if row.branches is not None:
            return self._nodes(row, row.branches)
        end = row.start + len(row.tokens)
        slots = [_slot(row, place) for place in range(end)]
        self._slots.update(zip(slots[row.start :], row.tokens, strict=True))
        tokens = tuple(self._slots[slot] for slot in slots)
        return [self._logits_of(tokens[:count]) for count in range(end - row.num_logits + 1, end + 1)]


def _slot(row: SequenceInput, place: int) -> int:
    return row.blocks[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
