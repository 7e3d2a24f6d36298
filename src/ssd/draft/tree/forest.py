"""All trees and their steps: `select` rows, `attach` the children that a forward found, `apply` outcomes.

On tensors each step is a fixed list of operations over storage that stays in place. Its results are in static
buffers (`rows`, `fresh`, `moves`), and no value is read on the host. On numpy arrays the shapes follow the
work that there is. Does not know models or whole texts.
"""

from dataclasses import fields

import numpy as np

from ssd.config import GrowthPolicyName
from ssd.draft.tree.apply import apply_outcomes
from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.attach import (
    RunRows,
    attach_rows,
    barren,
    confirmed,
    families,
    fresh_width,
    joined_rows,
    numbered,
    numbered_runs,
    run_rows,
    write_partings,
)
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.select import free_slots, growth_policy, select_rows
from ssd.draft.tree.tables import (
    WORD,
    WORDS,
    Constants,
    Moves,
    OutcomeTable,
    Shape,
    Tables,
    TenantUsage,
    TreeRows,
)

_FLAGS = ("is_read", "attaches")


class Forest:
    def __init__(self, xp: Arrays, shape: Shape, policy: GrowthPolicyName = "value") -> None:
        self.shape, self.xp = shape, xp
        self.tables = Tables.of(xp, shape)
        self.outcomes = OutcomeTable.of(xp, shape)
        self.usage = TenantUsage.of(xp, shape)
        self.is_shared = xp.is_fixed
        """Whether `usage` is read. A fixed list of operations always reads it."""
        self.truncates = True
        """Whether any sequence has top_k, top_p or min_p. Set by the host."""
        self._known = Constants.of(xp, shape)
        self._policy = growth_policy(policy, xp, shape)
        self._view, self._num_used = self.tables, shape.sequences
        all_rows = shape.num_rows + shape.lookup
        columns = {each.name: xp.integers(all_rows) for each in fields(TreeRows)}
        columns |= {name: xp.flags(all_rows) for name in _FLAGS}
        columns |= {"value": xp.exacts(all_rows), "ancestors": xp.integers(WORDS, all_rows)}
        self.rows = TreeRows(**columns)
        """The rows that were selected last."""
        self.runs = RunRows.of(xp, shape.lookup if xp.is_fixed else 0)
        """Runs of the next step. Written by the host."""
        self.fresh = xp.words(all_rows, fresh_width(shape))
        """The children that were attached last: see `attach.py`."""
        sequences = shape.sequences + 1
        self.moves = Moves(xp.integers(sequences, shape.outcome), xp.integers(sequences, shape.outcome))
        self._free = xp.integers(sequences, min(shape.slots, shape.width + shape.lookup))
        self._path_buffer = xp.integers(sequences, shape.outcome + 1)

    def narrow(self, count: int) -> None:
        """Restricts steps to the first `count` sequences, if the others are not in use."""
        if count != self._num_used:
            self._view, self._num_used = self.tables.leading(count), count

    def select(self) -> None:
        free = free_slots(self.xp, self.shape, self._known, self._view)
        if self.xp.is_fixed:
            self._free[: len(free)] = free
        else:
            self._free = free
        usage = self.usage if self.is_shared else None
        found = select_rows(self.xp, self.shape, self._known, self._view, self._policy, self._free, usage)
        self._keep(found, 0)

    def lay_runs(self) -> None:
        """Adds the rows of `runs` after those that were selected."""
        own = self.shape.num_rows if self.xp.is_fixed else len(self.rows.sequence)
        rows = self.rows.part(0, own)
        found = run_rows(self.xp, self.shape, self._known, self._view, rows, self.runs, self._free)
        self._keep(found, own)

    def attach(self, chosen: ChosenChildren) -> None:
        """Adds children to the nodes of all rows that attach."""
        xp, known, tables, rows, runs = self.xp, self._known, self._view, self.rows, self.runs
        found = families(xp, known, tables, rows, chosen)
        is_barren = barren(tables, rows, found)
        has_runs = len(runs.owner) > 0
        if has_runs:
            rows = confirmed(xp, known, rows, found, is_barren, runs)
            ids = numbered_runs(xp, tables, rows, found, runs)
        else:
            ids = numbered(xp, tables, rows, found)
        fresh = attach_rows(xp, known, tables, rows, found, is_barren, ids)
        if self._policy.keeps_partings:
            self._write_partings(rows)
        if xp.is_fixed:
            self.fresh[:] = fresh
        else:
            self.fresh = fresh

    def _keep(self, found: TreeRows, start: int) -> None:
        if not self.xp.is_fixed:
            self.rows = joined_rows(self.xp, self.rows, found) if start else found
            return
        for each in fields(TreeRows):
            column = getattr(found, each.name)
            getattr(self.rows, each.name)[..., start : start + column.shape[-1]] = column

    def _write_partings(self, rows: TreeRows) -> None:
        """Rows of a run are written one after the other: each is the parent of the next."""
        own, end = len(rows.sequence) - len(self.runs.owner), len(rows.sequence)
        for part in (rows.part(0, own), *(rows.part(row, row + 1) for row in range(own, end))):
            write_partings(self.xp, self._known, self._view, part)

    def apply(self) -> None:
        """Applies the outcomes, and clears them."""
        end = self._num_used + 1
        outcomes = OutcomeTable(self.outcomes.count[:end], self.outcomes.tokens[:end])
        moves = apply_outcomes(self.xp, self.shape, self._known, self._view, outcomes, self._path_buffer)
        if self.xp.is_fixed:
            self.moves.sources[:end], self.moves.targets[:end] = moves.sources, moves.targets
        else:
            self.moves = moves
        count: Array = self.outcomes.count
        count[:] = self._known.zero

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the tables of the sequences in use describe trees. Reads them all."""
        to_host, shape = self.xp.to_host, self.shape
        used, position = to_host(self._view.is_used)[1:], to_host(self._view.position)[1:]
        bits = ((to_host(self._view.ancestors)[:, 1:, :, None] >> np.arange(WORD)) & 1).astype(np.bool_)
        above = bits.transpose(1, 2, 0, 3).reshape(*used.shape, WORDS * WORD)[..., : shape.slots]
        nodes = used[:, : shape.slots]
        if (above & used[:, :, None] & ~nodes[:, None, :]).any():
            raise RuntimeError("a node has an ancestor that is not in use")
        depth = position - to_host(self._view.length)[1:, None] + 1
        if (used & (above.sum(2) != np.maximum(depth - 1, 0)))[:, : shape.slots].any():
            raise RuntimeError("the number of a node's ancestors does not match its depth")
        if (nodes & (depth[:, : shape.slots] < 1)).any():
            raise RuntimeError("a node lies before its root")
        unread = to_host(self._view.num_computed)[1:] < to_host(self._view.length)[1:]
        if (used & unread[:, None]).any():
            raise RuntimeError("a tree has nodes although its root was not read")
