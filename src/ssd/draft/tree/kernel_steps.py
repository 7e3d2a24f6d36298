"""A forest's steps by our kernels: passes tables and buffers to the launchers.

Each step has the same result as `select.py`, `attach.py` and `apply.py`, which define it, except for scratch
rows. Never run on a GPU. Knows tables; does not know models.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

from ssd.draft.tree import apply
from ssd.draft.tree.attach import RunRows
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.select import OLDEST, READ_FIRST
from ssd.draft.tree.tables import (
    NODE_BITS,
    NOTHING,
    RANKS,
    Constants,
    Moves,
    OutcomeTable,
    Shape,
    Tables,
    TenantUsage,
    TreeRows,
)
from ssd.kernels.tree_families import ChildTable, RawChildren, RunTable, attach_children, lay_runs
from ssd.kernels.tree_outcomes import OutcomeTokens, SlotMoves, apply_outcome_tokens
from ssd.kernels.tree_rows import KeyLayout, RankedNodes, lay_rows, rank_trees
from ssd.kernels.tree_turns import Queue, RowDemand, UsageColumns, take_turns
from ssd.kernels.trees import CalibrationParams, Sizes, StepRows, Trees
from ssd.kvcache.pool import NODES_PER_TREE

_KEYS = KeyLayout(NOTHING, READ_FIRST, OLDEST, NODE_BITS)
_Columns = TypeVar("_Columns", bound=tuple[Any, ...])


class KernelSteps:
    def __init__(
        self,
        shape: Shape,
        known: Constants,
        tables: Tables,
        rows: TreeRows,
        usage: TenantUsage,
        free: Tensor,
    ) -> None:
        """`free`: the buffer for free slots."""
        num_rows = len(rows.sequence)
        self._trees, self._rows = _columns(Trees, tables), _columns(StepRows, rows)
        self._sizes = Sizes(
            shape.width,
            shape.num_rows,
            num_rows,
            shape.outcome,
            shape.ring,
            shape.ends,
            shape.block,
            shape.blocks,
            shape.first_tree_slot,
            NODES_PER_TREE,
            tables.ancestors.stride(0),
            tables.parted.stride(0),
        )
        self._learning = CalibrationParams(known.edges, RANKS, apply.TRUST, apply.LEAST, apply.MEMORY)
        self._found = ChildTable.of(num_rows, shape.children, rows.sequence.device)
        self._ranked = RankedNodes.of(self._trees, self._sizes, free)
        self._usage = _columns(UsageColumns, usage)
        self._wishes = RowDemand(usage.wanted, *(torch.zeros_like(usage.wanted) for _ in range(2)))
        self._queue = Queue.of(self._ranked.keys.numel(), shape.num_rows, free.device)

    def select(self) -> None:
        rank_trees(self._trees, self._ranked, self._wishes, self._sizes, _KEYS)
        take_turns(self._ranked.keys, self._usage, self._wishes, self._queue, self._sizes, NOTHING)
        lay_rows(self._trees, self._rows, self._ranked, self._queue.found, self._sizes, _KEYS)

    def lay_runs(self, runs: RunRows) -> None:
        lay_runs(self._trees, self._rows, _columns(RunTable, runs), self._ranked.free, self._sizes)

    def attach(self, chosen: ChosenChildren, runs: RunRows, fresh: Tensor) -> None:
        """Attaches children; rows of confirmed runs become nodes."""
        asked, said = _columns(RunTable, runs), RawChildren(*(each.contiguous() for each in chosen))
        attach_children(self._trees, self._rows, said, asked, self._found, fresh, self._sizes, self._learning)

    def apply(self, outcomes: OutcomeTable, moves: Moves) -> None:
        arrived, carried = OutcomeTokens(outcomes.count, outcomes.tokens), _columns(SlotMoves, moves)
        apply_outcome_tokens(self._trees, arrived, carried, self._sizes, self._learning)


def _columns(kind: type[_Columns], table: object) -> _Columns:
    """The columns of a table that a kernel's tuple names."""
    return kind(*(getattr(table, name) for name in kind._fields))  # type: ignore[attr-defined]
