"""What a leading rank says arrives as it was said."""

import random

import numpy as np
import torch

from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.rows import Branches, PlainRow
from ssd.runtime.layout import Tiling, packed_layout, tiled_layout
from ssd.runtime.ranks.wire import Order, batch_heard, batch_said, heard, said

TENSORS = ("tokens", "positions", "slots", "sequences", "seen", "paths", "tables", "tree_starts", "wanted")


def a_batch(seed: int) -> Batch:
    rng = random.Random(seed)
    rows = [
        PlainRow(
            [rng.randrange(99) for _ in range(rng.randint(1, 9))], 3, [4, 2], 1, generated=bool(place % 2)
        )
        for place in range(rng.randint(1, 4))
    ]
    tree = Branches([5, 6], 5, 300, [2, 90], [1 << 2, 1 << 2 | 1 << 90])
    rows.append(PlainRow([7, 8], 0, [1, 6], 2, generated=True, branches=tree))
    layout = tiled_layout(rows, Tiling(16, 32)) if seed % 2 else packed_layout(rows)
    return BatchWriter(16, 160).write(rows, layout)


def test_a_batch_arrives_as_it_was_said() -> None:
    for seed in range(6):
        batch = a_batch(seed)
        order, parts = heard(batch_said(batch))
        found = batch_heard(parts)
        assert order is Order.FORWARD
        for name in TENSORS:
            assert torch.equal(getattr(found, name), getattr(batch, name)), name
        assert (found.num_wanted, found.spans) == (batch.num_wanted, batch.spans)
        assert (found.tiles, found.head_tiles) == (batch.tiles, batch.head_tiles)


def test_moves_and_parts_that_are_empty() -> None:
    order, parts = heard(said(Order.MOVE, [5, 6], [], np.array([7])))
    assert order is Order.MOVE
    assert [each.tolist() for each in parts] == [[5, 6], [], [7]]
