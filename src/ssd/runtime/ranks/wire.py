"""What a leading rank says, as whole numbers, each part with its length: a batch, or slots to move."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.attention.batch import Batch
from ssd.attention.rows import Span

Longs = NDArray[np.int64]
_SPAN = 5


class Order(IntEnum):
    FORWARD = 1
    MOVE = 2


def said(order: Order, *parts: Longs | Tensor | Sequence[int]) -> Longs:
    """[order, number of parts, their lengths, their contents]."""
    arrays = [np.asarray(each, np.int64).ravel() for each in parts]
    head = np.array([order, len(arrays), *map(len, arrays)], np.int64)
    return np.concatenate((head, *arrays))


def heard(words: Longs) -> tuple[Order, list[Longs]]:
    order, count = Order(int(words[0])), int(words[1])
    ends = 2 + count + np.cumsum(words[2 : 2 + count])
    starts = [2 + count, *ends[:-1]]
    return order, [words[start:end] for start, end in zip(starts, ends, strict=True)]


def batch_said(batch: Batch) -> Longs:
    tensors = (
        *(batch.tokens, batch.positions, batch.slots, batch.sequences, batch.seen),
        *(batch.paths, batch.tables, batch.tree_starts, batch.wanted),
    )
    spans = [
        number
        for each in batch.spans
        for number in (each.sequence, each.first, each.last, each.seen, each.num_nodes)
    ]
    arrays = [each.cpu().numpy() for each in tensors]
    return said(Order.FORWARD, *arrays, [batch.num_wanted], spans, batch.tiles, batch.head_tiles)


def batch_heard(parts: Sequence[Longs]) -> Batch:
    *arrays, num_wanted, spans, tiles, head_tiles = parts
    tokens, positions, slots, sequences, seen, paths, tables, tree_starts, wanted = (
        torch.from_numpy(each.copy()) for each in arrays
    )
    return Batch(
        tokens,
        positions,
        slots,
        sequences,
        seen,
        paths.view(len(tokens), -1),
        tables.view(len(tree_starts), -1),
        tree_starts,
        wanted,
        int(num_wanted[0]),
        tuple(Span(*map(int, each)) for each in spans.reshape(-1, _SPAN)),
        tuple(map(int, tiles)),
        tuple(map(int, head_tiles)),
    )
