"""A model whose logits are a function of the context that a row really sees: who sees another is found out.

Memory holds a token and its position for each KV slot. A row's context is read from there, and must be the
positions 0, 1, 2, … once each. Both sides, today's scheduler and the forest, get their logits here.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import WORD, Moves, Shape, Tables, TreeRows
from ssd.kvcache.pool import KVPool
from tests.row_runner import RowRunner

Ints = NDArray[np.int64]
_MOST_KNOWN = 50_000


class Texts:
    def __init__(self, vocab: int, *, spread: float = 2.5) -> None:
        self.vocab = vocab
        self._spread = spread
        self._known: dict[bytes, Tensor] = {}

    def logits(self, tokens: Ints) -> Tensor:
        key = tokens.astype(np.int32).tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            draw = np.random.default_rng(zlib.crc32(key))
            found = torch.from_numpy(draw.normal(0, self._spread, self.vocab).astype(np.float32))
            self._known[key] = found
        return found


def context(tokens: Ints, positions: Ints, slots: Sequence[int]) -> Ints:
    """The tokens that lie in the slots, by position."""
    seen = positions[list(slots)]
    order = seen.argsort()
    if seen[order].tolist() != list(range(len(slots))):
        raise AssertionError(f"a row sees positions {sorted(seen.tolist())}")
    return tokens[list(slots)][order]


class OracleRunner(RowRunner):
    """For today's scheduler: the memory is its pool, of which `move` copies keys."""

    def __init__(self, texts: Texts, pool: KVPool) -> None:
        self._texts = texts
        self._memory = pool.keys[0, 0]
        self._block = pool.shape.block_size

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        found: list[Tensor] = []
        memory: NDArray[Any] = self._memory.numpy()
        for row in rows:
            own, positions = self._own(row)
            memory[own, 0], memory[own, 1] = row.tokens, positions
        for row in rows:
            for i in range(len(row.tokens) - row.num_logits, len(row.tokens)):
                there = memory[self._seen(row, i)].astype(np.int64)
                found.append(self._texts.logits(context(there[:, 0], there[:, 1], range(len(there)))))
        return torch.stack(found) if found else torch.zeros(0, self._texts.vocab)

    def _own(self, row: SequenceInput) -> tuple[list[int], Sequence[int]]:
        """The slots of a row's tokens, and their positions."""
        branches = row.branches
        if branches is not None:
            return [branches.tree_start + node for node in branches.nodes], branches.positions
        positions = range(row.start, row.start + len(row.tokens))
        return [self._slot(row, position) for position in positions], positions

    def _seen(self, row: SequenceInput, i: int) -> list[int]:
        branches = row.branches
        if branches is None:
            return [self._slot(row, position) for position in range(row.start + i + 1)]
        path = branches.paths[i]
        nodes = [branches.tree_start + j for j in range(path.bit_length()) if path >> j & 1]
        return [*(self._slot(row, position) for position in range(branches.num_prefix)), *nodes]

    def _slot(self, row: SequenceInput, place: int) -> int:
        return row.blocks[place // self._block] * self._block + place % self._block


class ForestRunner:
    """For the forest: a memory with tree slots after the blocks, and an audit of every row."""

    def __init__(self, texts: Texts, shape: Shape) -> None:
        self._texts, self._shape = texts, shape
        size = shape.tree_start(shape.sequences + 1)
        self._tokens, self._positions = np.full(size, -1), np.full(size, -1)
        self.num_forwards = 0

    @property
    def num_columns(self) -> int:
        return self._texts.vocab

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        self.read(chunks)
        return self.logits(rows, tables)[rows.attaches]

    def read(self, chunks: Sequence[PrefillChunk]) -> None:
        for chunk in chunks:
            places = range(chunk.start, chunk.start + len(chunk.tokens))
            self._write([self._block_slot(chunk.blocks, p) for p in places], chunk.tokens, list(places))

    def logits(self, rows: TreeRows, tables: Tables) -> Tensor:
        """Of all rows; NaN for those that attach nothing."""
        self.num_forwards += 1
        columns = {name: _host(getattr(rows, name)) for name in TreeRows.__slots__}
        real = np.flatnonzero(columns["sequence"]).tolist()
        targets = columns["target"][real]
        if len(set(targets.tolist())) != len(real):
            raise AssertionError("two rows write one slot")
        self._write(targets, columns["token"][real], columns["position"][real])
        logits = torch.full((len(columns["token"]), self._texts.vocab), torch.nan)
        for row in real:
            if columns["attaches"][row]:
                logits[row] = self._texts.logits(self._context(columns, _host(tables.blocks), row))
        return logits

    def move(self, moves: Moves) -> None:
        sources, targets = _host(moves.sources).ravel(), _host(moves.targets).ravel()
        real = targets != self._shape.first_tree_slot
        if len(set(targets[real].tolist())) != real.sum():
            raise AssertionError("two keys move into one slot")
        self._write(targets[real], self._tokens[sources[real]], self._positions[sources[real]])

    def _write(self, slots: Any, tokens: Any, positions: Any) -> None:
        self._tokens[slots], self._positions[slots] = tokens, positions

    def _context(self, columns: dict[str, NDArray[Any]], blocks: NDArray[Any], row: int) -> Ints:
        shape, sequence = self._shape, int(columns["sequence"][row])
        slots = [self._block_slot(blocks[sequence], p) for p in range(columns["context_len"][row])]
        words = [int(each) for each in columns["ancestors"][:, row]]
        bits = [j for j in range(shape.slots) if words[j // WORD] >> j % WORD & 1]
        slots += [shape.tree_start(sequence) + j for j in bits]
        if not columns["is_read"][row]:
            slots.append(int(columns["target"][row]))
        return context(self._tokens, self._positions, slots)

    def _block_slot(self, blocks: Any, position: int) -> int:
        return int(blocks[position // self._shape.block]) * self._shape.block + position % self._shape.block


def _host(array: Any) -> NDArray[Any]:
    return array if isinstance(array, np.ndarray) else array.numpy()
