"""Runs the draft model for a forest: a step's rows become one batch, and keys move after outcomes.

Tables and rows have all that a batch needs: tokens, positions, slots, block tables, bits of ancestors. With
numpy arrays the batch also says which rows belong together, and only rows that attach have logits. With
tensors every row has logits, and no value is read on the host. Knows the pool and a runner; does not know
trees or texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.attention.backend import AttentionBackend
from ssd.attention.batch import Batch
from ssd.attention.choice import mover
from ssd.attention.inputs import PlainInput, RowSpan
from ssd.draft.tree.arrays import NumpyArrays, TorchArrays
from ssd.draft.tree.tables import WORD, Moves, Shape, Tables, TreeRows, slot_bits
from ssd.kvcache.pool import KVPool
from ssd.models import decoder
from ssd.models.decoder import DenseDecoder
from ssd.runtime.runner import Runner

Longs = NDArray[np.int64]
_MASK = (1 << WORD) - 1


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of a prompt that are read beside a step's rows. Their logits are not needed."""

    row: int
    """Row of the tables."""
    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]

    def as_row(self) -> PlainInput:
        return PlainInput(self.tokens, self.start, self.blocks, 0, generated=False)


class ForestModel(Protocol):
    """The draft model, for arrays. Its KV memory has the KV blocks of texts and the slots of trees."""

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        """Float32 logits of the rows that attach."""
        ...

    def move(self, moves: Moves) -> None: ...


class ArraysModel:
    """For a forest of numpy arrays. The model may run on any device."""

    def __init__(self, runner: Runner, pool: KVPool, shape: Shape) -> None:
        self._runner, self._pool, self._shape = runner, pool, shape
        self._bits: Longs = slot_bits(NumpyArrays(), shape)
        self._tree_starts = torch.from_numpy(shape.tree_start(np.arange(shape.sequences + 1)))

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        return self._runner.launch(self._batch(rows, tables, chunks), _as_they_are).collect()

    def move(self, moves: Moves) -> None:
        moved = np.flatnonzero(moves.targets != self._shape.first_tree_slot)
        if len(moved):
            pairs = np.stack((moves.sources.ravel()[moved], moves.targets.ravel()[moved]))
            self._pool.move(*torch.from_numpy(pairs).to(self._pool.shape.device))

    def _batch(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Batch:
        # Sorted: a run then follows its tree's other rows, and attention computes them together.
        order = np.argsort(rows.sequence, kind="stable")
        sequence, attaches = rows.sequence[order], rows.attaches[order]
        columns = np.stack((rows.token, rows.position, rows.target, rows.sequence, rows.context_len))[
            :, order
        ]
        paths = np.ascontiguousarray((rows.ancestors | self._bits[:, rows.slot])[:, order].T)
        spans = _spans(sequence, rows.is_read[order], columns[4], paths)
        # Logits come in the order of the rows, not of the batch.
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        wanted = places[rows.attaches]
        if chunks:
            columns, paths, spans = self._with_chunks(columns, paths, spans, tables.blocks, chunks)
        # Only the block tables that rows refer to.
        end = int(columns[3].max(initial=0)) + 1
        tokens, positions, slots, sequences, seen = (torch.from_numpy(column) for column in columns)
        return Batch(
            tokens,
            positions,
            slots,
            sequences,
            seen,
            torch.from_numpy(paths),
            torch.from_numpy(tables.blocks[:end]),
            self._tree_starts[:end],
            torch.from_numpy(wanted),
            int(attaches.sum()),
            tuple(spans),
        )

    def _with_chunks(
        self,
        columns: Longs,
        paths: Longs,
        spans: list[RowSpan],
        blocks: Longs,
        chunks: Sequence[PrefillChunk],
    ) -> tuple[Longs, Longs, list[RowSpan]]:
        parts, first = [columns], columns.shape[1]
        for each in chunks:
            parts.append(_chunk_columns(each, blocks[each.row], self._shape.block))
            spans.append(RowSpan(each.row, first, first + len(each.tokens), each.start + 1))
            first += len(each.tokens)
        below = np.zeros((first - len(paths), paths.shape[1]), np.int64)
        return np.concatenate(parts, 1), np.concatenate((paths, below)), spans


class TensorsModel:
    """For a forest of tensors: a fixed list of operations over all rows, including padding."""

    def __init__(
        self, model: DenseDecoder, attention: AttentionBackend, pool: KVPool, shape: Shape, beside: Runner
    ) -> None:
        """`beside` has the same model and pool, and prefills prompts."""
        self._model, self._attention, self._beside = model, attention, beside
        self._move = mover(pool)
        device = pool.shape.device
        self._bits = slot_bits(TorchArrays(device), shape)
        self._tree_starts = shape.tree_start(torch.arange(shape.sequences + 1, device=device))
        self._zero = torch.zeros((), dtype=torch.long, device=device)

    @property
    def num_columns(self) -> int:
        """Columns of the logits."""
        return self._model.num_columns

    def read(self, chunks: Sequence[PrefillChunk]) -> None:
        """Prefills the chunks, without waiting for it. Call before the step: its rows attend to them."""
        if chunks:
            self._beside.launch(self._beside.batch([each.as_row() for each in chunks]), _as_they_are)

    @torch.inference_mode()
    def logits(self, rows: TreeRows, tables: Tables) -> Tensor:
        """Logits of all rows in the model's number format, by a fixed list of operations."""
        # Padding attends to its own key, in the first scratch slot.
        own = self._bits[:, torch.where(rows.sequence > 0, rows.slot, self._zero)]
        batch = Batch(
            rows.token,
            rows.position,
            rows.target,
            rows.sequence,
            rows.context_len,
            (rows.ancestors | own).T.contiguous(),
            tables.blocks,
            self._tree_starts[: len(tables.blocks)],
            rows.sequence,
            len(rows.token),
            (),
        )
        plan = self._attention.plan(batch)
        hidden = self._model.hidden(decoder.DecoderInput(batch.tokens, batch.positions, plan))
        return self._model.logits(hidden)

    def move(self, moves: Moves) -> None:
        # From tree slots into KV blocks: no slot is both source and target.
        self._move(moves.sources.view(-1), moves.targets.view(-1))


def _as_they_are(logits: Tensor) -> Tensor:
    return logits


def _chunk_columns(chunk: PrefillChunk, blocks: Longs, size: int) -> Longs:
    positions = np.arange(chunk.start, chunk.start + len(chunk.tokens))
    slots = blocks[positions // size] * size + positions % size
    sequences = np.full(len(positions), chunk.row)
    return np.stack((np.array(chunk.tokens, np.int64), positions, slots, sequences, positions + 1))


def _spans(sequence: Longs, is_read: NDArray[np.bool_], seen: Longs, paths: Longs) -> list[RowSpan]:
    """Spans of rows of one sequence: tokens of its text, or nodes of its tree."""
    if not len(sequence):
        return []
    kind = 2 * sequence + is_read
    firsts = np.flatnonzero(np.diff(kind, prepend=-1))
    lasts = [*firsts[1:].tolist(), len(kind)]
    bits = np.bitwise_or.reduceat(paths, firsts).tolist()
    parts = zip(sequence[firsts].tolist(), firsts.tolist(), lasts, seen[firsts].tolist(), bits, strict=True)
    return [RowSpan(owner, first, last, sees, _num_nodes(words)) for owner, first, last, sees, words in parts]


def _num_nodes(words: Sequence[int]) -> int:
    """The number of leading slots of a tree that contain all bits."""
    return sum((word & _MASK) << place * WORD for place, word in enumerate(words)).bit_length()
