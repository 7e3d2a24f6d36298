"""The input of one forward as tensors: tokens, positions, and the keys that each row sees.

A row is a token at a position. It sees the first `seen` keys of its sequence's block table and, if it is a
node of a tree, the nodes on its path, which are bits; rows of plain text have no bits. Keys of nodes are in
tree slots, `NODES_PER_TREE` for each tree, after the slots of the blocks; they never move.

Knows the numbers of slots and blocks. Does not know memory, models or the use of the logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.attention.inputs import Branches, Layout, RowSpan, SequenceInput
from ssd.kvcache.pool import NODES_PER_TREE

WORD = 64
_WORDS = NODES_PER_TREE // WORD


@dataclass(frozen=True, slots=True)
class Batch:
    """Views of buffers that the next forward overwrites. The last sequence belongs to padding rows."""

    tokens: Tensor
    """[rows], like the next four."""
    positions: Tensor
    slots: Tensor
    """The slot of each row's key and value."""
    sequences: Tensor
    seen: Tensor
    paths: Tensor
    """[rows, words]: bits of the nodes that each row sees."""
    tables: Tensor
    """[sequences, blocks]."""
    tree_starts: Tensor
    """[sequences]."""
    wanted: Tensor
    """Rows that need logits, followed by padding."""
    num_wanted: int
    spans: tuple[RowSpan, ...]
    tiles: tuple[int, ...] = ()
    """Row counts of the tiles for linears; empty: all rows at once."""
    head_tiles: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class _Buffers:
    """Buffers [columns, rows] that grow as needed."""

    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros((5, 0), np.int64))
    paths: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, _WORDS), np.int64))

    def cover(self, num_rows: int) -> None:
        if num_rows > self.rows.shape[1]:
            capacity = max(64, 2 * num_rows)
            self.rows = np.zeros((5, capacity), np.int64)
            self.paths = np.zeros((capacity, _WORDS), np.int64)


class BatchWriter:
    """Writes batches into the same buffers: a batch is valid until the next one is written."""

    def __init__(self, block_size: int, scratch_slot: int) -> None:
        self._block_size = block_size
        self._scratch_slot = scratch_slot
        self._buffers = _Buffers()

    def write(self, rows: Sequence[SequenceInput], layout: Layout) -> Batch:
        self._buffers.cover(layout.num_rows)
        columns = self._buffers.rows[:, : layout.num_rows]
        paths = self._buffers.paths[: layout.num_rows]
        tables = self._tables(rows, layout)
        tree_starts = np.zeros(len(tables), np.int64)
        counts = np.array([len(row.tokens) for row in rows], np.int64)
        if counts.sum() < layout.num_rows:
            columns[:] = self._padding(sequence=len(tables) - 1)
        self._write_texts(columns, rows, counts, layout, tables)
        paths[:] = 0
        spans = []
        for index, row in enumerate(rows):
            first, last = layout.first_rows[index], layout.first_rows[index] + len(row.tokens)
            if row.branches is None:
                spans.append(RowSpan(index, first, last, row.start + 1))
                continue
            tree_starts[index] = row.branches.tree_start
            spans.append(_write_tree(columns, paths, row.branches, index, first, last))
        tokens, positions, slots, sequences, seen = (torch.from_numpy(column) for column in columns)
        return Batch(
            tokens,
            positions,
            slots,
            sequences,
            seen,
            torch.from_numpy(paths),
            torch.from_numpy(tables),
            torch.from_numpy(tree_starts),
            torch.from_numpy(_wanted(rows, layout)),
            sum(row.num_logits for row in rows),
            tuple(spans),
            layout.tiles,
            layout.head_tiles,
        )

    def _tables(self, rows: Sequence[SequenceInput], layout: Layout) -> NDArray[np.int64]:
        num_sequences = len(rows) if layout.num_sequences is None else layout.num_sequences
        longest = max((len(row.blocks) for row in rows), default=1)
        num_blocks = longest if layout.num_blocks is None else layout.num_blocks
        tables = np.full((num_sequences + 1, num_blocks), self._scratch_slot // self._block_size, np.int64)
        for table, row in zip(tables, rows, strict=False):
            table[: len(row.blocks)] = row.blocks
        return tables

    def _padding(self, *, sequence: int) -> NDArray[np.int64]:
        """The columns of a padding row: token 0 at position 0, which writes and sees the scratch slot."""
        return np.array([[0], [0], [self._scratch_slot], [sequence], [1]], np.int64)

    def _write_texts(
        self,
        columns: NDArray[np.int64],
        rows: Sequence[SequenceInput],
        counts: NDArray[np.int64],
        layout: Layout,
        tables: NDArray[np.int64],
    ) -> None:
        """Writes every row as plain text; rows of trees are overwritten afterwards."""
        total = int(counts.sum())
        before = np.cumsum(counts) - counts
        within = np.arange(total) - np.repeat(before, counts)
        at = np.repeat(np.array(layout.first_rows, np.int64), counts) + within
        positions = np.repeat(np.array([row.start for row in rows], np.int64), counts) + within
        sequences = np.repeat(np.arange(len(rows)), counts)
        blocks = tables[sequences, np.minimum(positions // self._block_size, tables.shape[1] - 1)]
        columns[0, at] = [token for row in rows for token in row.tokens]
        columns[1, at] = positions
        columns[2, at] = blocks * self._block_size + positions % self._block_size
        columns[3, at] = sequences
        columns[4, at] = positions + 1


def _write_tree(
    columns: NDArray[np.int64],
    paths: NDArray[np.int64],
    branches: Branches,
    sequence: int,
    first: int,
    last: int,
) -> RowSpan:
    columns[1, first:last] = branches.positions
    columns[2, first:last] = np.array(branches.nodes) + branches.tree_start
    columns[4, first:last] = branches.num_prefix
    paths[first:last] = path_words(branches.paths)
    num_nodes = max(path.bit_length() for path in branches.paths)
    return RowSpan(sequence, first, last, branches.num_prefix, num_nodes)


def path_words(paths: Sequence[int]) -> NDArray[np.int64]:
    """The bits of each path as words, the lowest first: [rows, words]."""
    words = b"".join(path.to_bytes(_WORDS * WORD // 8, "little") for path in paths)
    return np.frombuffer(words, np.dtype("<i8")).reshape(-1, _WORDS)


def sees_nodes(paths: Tensor, num_nodes: int) -> Tensor:
    """Which of the first nodes each row [rows, words] sees: [rows, num_nodes]."""
    bits = torch.arange(WORD, device=paths.device)
    seen: Tensor = ((paths.unsqueeze(-1) >> bits) & 1).flatten(1)[:, :num_nodes].bool()
    return seen


def _wanted(rows: Sequence[SequenceInput], layout: Layout) -> NDArray[np.int64]:
    """Indices of rows that need logits; padding repeats the last, whose logits are computed anyway."""
    ends = [first + len(row.tokens) for row, first in zip(rows, layout.first_rows, strict=True)]
    indices = [
        index for row, end in zip(rows, ends, strict=True) for index in range(end - row.num_logits, end)
    ]
    lacking = 0 if layout.num_wanted is None else layout.num_wanted - len(indices)
    return np.array([*indices, *(indices[-1:] or [0]) * lacking], np.int64)
