"""A forest whose steps are our kernels, where these may run: a handful of launches instead of hundreds.

What is not among its kernels is done by torch's operations. Fan-out policies ask where paths part, which no
kernel knows: they select and attach by torch.
"""

from typing import Literal, get_args

import torch

from ssd.config import GrowthPolicyName
from ssd.draft.forest.arrays import TorchArrays
from ssd.draft.forest.children import Told
from ssd.draft.forest.forest import Forest
from ssd.draft.forest.tables import Shape

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
            from ssd.draft.forest.kernel_steps import KernelSteps

            self._fused = KernelSteps(shape, self._known, self.tables, self.rows, self.turns, self._free)

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

    def attach(self, told: Told) -> None:
        if "attach" in self._kernels:
            self._fused.attach(told, self.runs, self.fresh)
        else:
            super().attach(told)

    def apply(self) -> None:
        if "apply" in self._kernels:
            self._fused.apply(self.inbox, self.moves)
        else:
            super().apply()


def kernels_on(device: torch.device) -> frozenset[Step]:
    """Those of a forest's steps that may run there."""
    if device.type == "cpu":
        return frozenset()
    from ssd.kernels.trust import may_run

    return frozenset(step for step in STEPS if may_run(step, device))
