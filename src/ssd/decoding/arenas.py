"""Where a step's trees have their keys: beside the pages, and an accepted path in its pages afterwards.

A sequence with a tree is two rows of a batch: what is known of its text, and the nodes behind it, each of
which sees the text and its own path. Arenas are lent for one step, in the order of the rows. Knows slots.
Does not know what was decided by whom, or who owns a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.attention.choice import mover
from ssd.attention.rows import Branches, PlainRow, Row
from ssd.decoding.rows import Decided, DecodeRow
from ssd.draft.client.branching import depths_of, path_to
from ssd.kvcache.pool import KVPool

Move = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class Arenas:
    starts: Sequence[int] = ()
    """Of each, its first slot."""
    block_size: int = 1
    move: Move | None = None
    """Copies keys and values from slots to others."""
    device: torch.device | str = "cpu"

    @classmethod
    def of(cls, pool: KVPool) -> "Arenas":
        shape = pool.shape
        starts = [shape.tree_start(index) for index in range(shape.num_trees)]
        return cls(starts, shape.block_size, mover(pool), shape.device)

    def laid_out(self, rows: Sequence[DecodeRow]) -> Sequence[Row]:
        """What a batch is written from; places of wanted logits are in the order of the rows' decisions."""
        if all(row.parents is None for row in rows):
            return rows
        starts = iter(self.starts)
        found = list[Row]()
        for row in rows:
            found += [row] if row.parents is None else _known_and_nodes(row, row.parents, next(starts))
        return found

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided]) -> None:
        """Keys of the accepted paths go where a text has them; those of other nodes are forgotten."""
        starts = iter(self.starts)
        sources, destinations = list[int](), list[int]()
        for row, each in zip(rows, decided, strict=True):
            if row.parents is None:
                continue
            start, first = next(starts), row.start + len(row.tokens) - row.num_drafted
            sources += [start + node for node in each.branch]
            destinations += [self._slot(row, first + place) for place in range(len(each.branch))]
        if sources and self.move is not None:
            self.move(*(torch.tensor(slots, device=self.device) for slots in (sources, destinations)))

    def _slot(self, row: DecodeRow, position: int) -> int:
        return row.blocks[position // self.block_size] * self.block_size + position % self.block_size


def _known_and_nodes(row: DecodeRow, parents: Sequence[int], tree_start: int) -> tuple[Row, Row]:
    count = row.num_drafted
    known = row.tokens[: len(row.tokens) - count]
    num_trunk = row.start + len(known)
    branches = Branches(
        positions=[num_trunk + depth - 1 for depth in depths_of(parents, count)],
        num_trunk=num_trunk,
        tree_start=tree_start,
        nodes=range(count),
        paths=[sum(1 << each for each in path_to(parents, node)) for node in range(count)],
    )
    return (
        PlainRow(known, row.start, row.blocks, 1, generated=True),
        PlainRow(row.drafted, num_trunk, row.blocks, count, generated=True, branches=branches),
    )
