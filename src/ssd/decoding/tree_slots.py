"""KV slots for the trees of a step, beside the pages; keys of an accepted path are copied to its pages.

A sequence with a tree is two rows of a batch: its known tokens, and the tree's nodes, each of which attends
to the text and its own path. Slots are lent for one step, in the order of the rows. Knows slots. Does not
know how tokens are decided or which sequence owns a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.attention.choice import mover
from ssd.attention.inputs import Branches, PlainInput, SequenceInput
from ssd.decoding.rows import Decided, DecodeRow
from ssd.draft.client.proposals import depths_of, path_to
from ssd.kvcache.pool import KVPool

Move = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class TreeSlots:
    starts: Sequence[int] = ()
    """The first slot of each tree."""
    block_size: int = 1
    move: Move | None = None
    """Copies keys and values from slots to other slots."""
    device: torch.device | str = "cpu"

    @classmethod
    def of(cls, pool: KVPool) -> "TreeSlots":
        shape = pool.shape
        starts = [shape.tree_start(index) for index in range(shape.num_trees)]
        return cls(starts, shape.block_size, mover(pool), shape.device)

    def laid_out(self, rows: Sequence[DecodeRow]) -> Sequence[SequenceInput]:
        """Rows of the batch: two for a sequence with a tree. Wanted logits are in the order of decisions."""
        if all(row.parents is None for row in rows):
            return rows
        starts = iter(self.starts)
        found = list[SequenceInput]()
        for row in rows:
            found += [row] if row.parents is None else _known_and_nodes(row, row.parents, next(starts))
        return found

    def settle(self, rows: Sequence[DecodeRow], decided: Sequence[Decided]) -> None:
        """Copies keys of accepted paths to their sequences' pages; keys of other nodes are dropped."""
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


def _known_and_nodes(
    row: DecodeRow, parents: Sequence[int], tree_start: int
) -> tuple[SequenceInput, SequenceInput]:
    count = row.num_drafted
    known = row.tokens[: len(row.tokens) - count]
    num_prefix = row.start + len(known)
    branches = Branches(
        positions=[num_prefix + depth - 1 for depth in depths_of(parents, count)],
        num_prefix=num_prefix,
        tree_start=tree_start,
        nodes=range(count),
        paths=[sum(1 << each for each in path_to(parents, node)) for node in range(count)],
    )
    return (
        PlainInput(known, row.start, row.blocks, 1, generated=True),
        PlainInput(row.drafted, num_prefix, row.blocks, count, generated=True, branches=branches),
    )
