"""A forest's steps on a GPU by our kernels.

`KernelSteps` passes tables and buffers to the kernels' launchers. Each step has the same result as
`select.py`, `forest.py` and `apply.py`, which define it, except for scratch rows.

`FusedForest` and `FusedChildren` use our kernels, a handful of launches instead of hundreds, and torch's
operations for the rest. Fan-out policies select and attach by torch: the kernels do not keep `parted`.
`FixedChildren` is the torch form of `FusedChildren`, except that it adds noise only to the largest logits.

Never run on a GPU.

Import late: Triton takes long to import and is useless without a GPU.
"""

from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from ssd.config import GrowthPolicyName
from ssd.draft.tree import apply
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import (
    SAMPLED_CANDIDATES,
    ChildChooser,
    ChosenChildren,
    FixedChildren,
    SamplingNeeds,
    truncation_of,
)
from ssd.draft.tree.forest import Forest, ForestTables, RunRows
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
from ssd.kernels.floors import floors_of
from ssd.kernels.language import can_launch
from ssd.kernels.tree_families import ChildTable, RawChildren, RunTable, attach_children, lay_runs
from ssd.kernels.tree_outcomes import OutcomeTokens, SlotMoves, apply_outcome_tokens
from ssd.kernels.tree_rows import KeyLayout, RankedNodes, lay_rows, rank_trees
from ssd.kernels.tree_turns import Queue, RowDemand, UsageColumns, take_turns
from ssd.kernels.trees import CalibrationParams, Sizes, StepRows, Trees
from ssd.kernels.vocabulary import children_of
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.sampling.draws import Draws
from ssd.sampling.select import largest_values

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
        self._trees, self._rows = columns_of(Trees, tables), columns_of(StepRows, rows)
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
        self._usage = columns_of(UsageColumns, usage)
        self._wishes = RowDemand(usage.wanted, *(torch.zeros_like(usage.wanted) for _ in range(2)))
        self._queue = Queue.of(self._ranked.keys.numel(), shape.num_rows, free.device)

    def select(self) -> None:
        rank_trees(self._trees, self._ranked, self._wishes, self._sizes, _KEYS)
        take_turns(self._ranked.keys, self._usage, self._wishes, self._queue, self._sizes, NOTHING)
        lay_rows(self._trees, self._rows, self._ranked, self._queue.found, self._sizes, _KEYS)

    def lay_runs(self, runs: RunRows) -> None:
        lay_runs(self._trees, self._rows, columns_of(RunTable, runs), self._ranked.free, self._sizes)

    def attach(self, chosen: ChosenChildren, runs: RunRows, fresh: Tensor) -> None:
        """Attaches children; rows of confirmed runs become nodes."""
        asked, said = columns_of(RunTable, runs), RawChildren(*(each.contiguous() for each in chosen))
        attach_children(self._trees, self._rows, said, asked, self._found, fresh, self._sizes, self._learning)

    def apply(self, outcomes: OutcomeTable, moves: Moves) -> None:
        arrived, carried = OutcomeTokens(outcomes.count, outcomes.tokens), columns_of(SlotMoves, moves)
        apply_outcome_tokens(self._trees, arrived, carried, self._sizes, self._learning)


def columns_of(kind: type[_Columns], table: object) -> _Columns:
    """The columns of a table that a kernel's tuple names."""
    return kind(*(getattr(table, name) for name in kind._fields))  # type: ignore[attr-defined]


Step = Literal["select", "attach", "apply"]
STEPS: tuple[Step, ...] = get_args(Step)


class FusedForest(Forest):
    """A forest whose steps are kernels, where they may run."""

    def __init__(
        self,
        xp: TorchArrays,
        shape: Shape,
        policy: GrowthPolicyName = "value",
        kernels: frozenset[Step] = frozenset(),
        shared: ForestTables | None = None,
    ) -> None:
        """`kernels`: the steps that kernels do."""
        super().__init__(xp, shape, policy, shared)
        # The kernel of `select` has the policy "value" built in, and that of `attach` keeps no partings.
        unfit: set[Step] = {"select"} if policy != "value" else set()
        unfit |= {"attach"} if self._policy.keeps_partings else set()
        self._kernels = kernels - unfit
        if self._kernels:
            self._fused = KernelSteps(shape, self._known, self.tables, self.rows, self.usage, self._free)

    def select(self) -> None:
        if "select" in self._kernels:
            self._fused.select()
        else:
            super().select()

    def lay_runs(self) -> None:
        if "attach" in self._kernels:
            self._fused.lay_runs(self.runs)
        else:
            super().lay_runs()

    def attach(self, chosen: ChosenChildren) -> None:
        if "attach" in self._kernels:
            self._fused.attach(chosen, self.runs, self.fresh)
        else:
            super().attach(chosen)

    def apply(self) -> None:
        if "apply" in self._kernels:
            self._fused.apply(self.outcomes, self.moves)
        else:
            super().apply()


def kernels_on(device: torch.device) -> frozenset[Step]:
    """The steps whose kernels may run on this device."""
    if device.type == "cpu":
        return frozenset()
    return frozenset(STEPS) if can_launch(device) else frozenset()


class FusedChildren:
    def __init__(
        self, count: int, head_tokens: Tensor | None, device: torch.device, *, truncates: bool
    ) -> None:
        self._count, self._head_tokens, self._truncates = count, head_tokens, truncates
        self._zero = torch.zeros((), device=device)

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        sequence = rows.sequence
        temperatures = tables.temperature[sequence]
        heats = torch.where(tables.kind[sequence] == 0, self._zero, temperatures)
        is_murmur = tables.is_murmur[sequence]
        draws = Draws(tables.seed[sequence], rows.position + 1, heats, is_murmur=is_murmur)
        if not self._truncates:
            return children_of(logits, draws, None, self._count, self._head_tokens)
        # A floor below these is ignored: finding it would take a sort of the whole vocabulary.
        largest = largest_values(logits, min(SAMPLED_CANDIDATES, logits.shape[1]))
        truncation = truncation_of(tables, sequence)
        floors = floors_of(logits, largest, heats, truncation)
        return children_of(logits, draws, floors, self._count, self._head_tokens)


def children_on(
    device: torch.device, count: int, head_tokens: Tensor | None, *, truncates: bool
) -> ChildChooser:
    """A fixed list of operations for all rows. Sampling does not change the result of greedy rows."""
    if device.type != "cpu" and can_launch(device):
        return FusedChildren(count, head_tokens, device, truncates=truncates)
    return FixedChildren(count, SamplingNeeds(samples=True, truncates=truncates), head_tokens, device=device)
