"""Steps of a forest, and the choice of children, by our kernels: a handful of launches instead of hundreds.

What is not among its kernels is done by torch's operations. Fan-out policies ask where paths part, which no
kernel knows: they select and attach by torch. `FixedChildren` is the torch form of `FusedChildren`, except
that it leaves out the noise of all but the largest logits. For a GPU; never run on one.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ssd.config import GrowthPolicyName
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import (
    SAMPLED_CANDIDATES,
    ChildChooser,
    ChosenChildren,
    FixedChildren,
    SamplingNeeds,
    truncation_of,
)
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import Shape, Tables, TreeRows
from ssd.sampling.draws import Draws
from ssd.sampling.select import largest_of_rows
from ssd.sampling.truncation import candidate_floors
from ssd.sampling.whole import scaled

Step = Literal["select", "attach", "apply"]
STEPS: tuple[Step, ...] = get_args(Step)


class FusedForest(Forest):
    def __init__(
        self,
        xp: TorchArrays,
        shape: Shape,
        policy: GrowthPolicyName = "value",
        kernels: frozenset[Step] = frozenset(),
    ) -> None:
        """`kernels`: which of `STEPS` are theirs."""
        super().__init__(xp, shape, policy)
        self._kernels = kernels - {"select", "attach"} if self._policy.keeps_partings else kernels
        if self._kernels:
            # Not before it is wanted: Triton takes long to import, and is of use on a GPU only.
            from ssd.draft.tree.kernel_steps import KernelSteps

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
    """Those of a forest's steps that may run there."""
    if device.type == "cpu":
        return frozenset()
    from ssd.kernels.trust import may_run

    return frozenset(step for step in STEPS if may_run(step, device))


class FusedChildren:
    def __init__(
        self, count: int, head_tokens: Tensor | None, device: torch.device, *, truncates: bool
    ) -> None:
        self._count, self._head_tokens, self._truncates = count, head_tokens, truncates
        self._zero = torch.zeros((), device=device)

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        from ssd.kernels.vocabulary import children_of

        sequence = rows.sequence
        temperatures = tables.temperature[sequence]
        heats = torch.where(tables.kind[sequence] == 0, self._zero, temperatures)
        draws = Draws(tables.seed[sequence], rows.position + 1, heats)
        if not self._truncates:
            return children_of(logits, draws, None, self._count, self._head_tokens)
        scores = scaled(logits, temperatures)
        _, largest = largest_of_rows(scores, min(SAMPLED_CANDIDATES, scores.shape[1]))
        # A floor below the candidates is none: it would take a sort of the whole vocabulary to find it.
        floors = candidate_floors(largest, scores, truncation_of(tables, sequence))
        return children_of(logits, draws, floors, self._count, self._head_tokens)


def children_on(
    device: torch.device, count: int, head_tokens: Tensor | None, *, truncates: bool
) -> ChildChooser:
    """A fixed list of operations for everybody: what a greedy sequence needs not changes nothing for it."""
    if device.type != "cpu":
        # Not before it is wanted: Triton takes long to import, and is of use on a GPU only.
        from ssd.kernels.trust import may_run

        if may_run("children", device):
            return FusedChildren(count, head_tokens, device, truncates=truncates)
    return FixedChildren(count, SamplingNeeds(samples=True, truncates=truncates), head_tokens, device=device)
