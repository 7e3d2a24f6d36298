"""A forest's steps as captured work: what is done to tables, the forward and the choice of children.

For the host they are a forest, a model and a choice of children like others. Each step was captured while
no session was open, so all it wrote was scratch; a replay does the same to what lies in the tables then. What
a step needs of the host (outcomes, runs, who is live) is loaded into the tables before.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ssd.config import GrowthPolicyName
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import ChildChooser, ChosenChildren
from ssd.draft.tree.fused import FusedForest, Step
from ssd.draft.tree.model import PrefillChunk, TensorsModel
from ssd.draft.tree.tables import Moves, Shape, Tables, TreeRows
from ssd.runtime.capture import Capture


class CapturedForest(FusedForest):
    def __init__(
        self,
        xp: TorchArrays,
        shape: Shape,
        policy: GrowthPolicyName,
        capture: Capture,
        kernels: frozenset[Step] = frozenset(),
    ) -> None:
        super().__init__(xp, shape, policy, kernels)
        size = shape.num_rows + shape.lookup, shape.children
        self.chosen: ChosenChildren = xp.integers(*size), xp.reals(*size, fill=-torch.inf)
        """What a replay attaches."""
        with torch.inference_mode():
            self._replay_select = capture(super().select)
            self._replay_runs = capture(super().lay_runs) if shape.lookup else None
            self._replay_attach = capture(self._attach_chosen)
            self._replay_apply = capture(super().apply)

    def narrow(self, count: int) -> None:
        """What was captured is of all sequences."""

    def select(self) -> None:
        with torch.inference_mode():
            self._replay_select()

    def lay_runs(self) -> None:
        if self._replay_runs is not None:
            with torch.inference_mode():
                self._replay_runs()

    def attach(self, chosen: ChosenChildren) -> None:
        with torch.inference_mode():
            for place, said in zip(self.chosen, chosen, strict=True):
                if place is not said:
                    place.copy_(said)
            self._replay_attach()

    def apply(self) -> None:
        with torch.inference_mode():
            self._replay_apply()

    def _attach_chosen(self) -> None:
        super().attach(self.chosen)


class CapturedModel:
    """The forward of a step, and moves of keys; prompts are read as they come."""

    def __init__(self, model: TensorsModel, forest: CapturedForest, capture: Capture) -> None:
        self._model, self._forest = model, forest
        device = forest.rows.token.device
        self.logits = torch.zeros(len(forest.rows.token), model.num_columns, device=device)
        with torch.inference_mode():
            self._replay = capture(self._forward)
            self._replay_moves = capture(lambda: model.move(forest.moves))

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        self._model.read(chunks)
        with torch.inference_mode():
            self._replay()
        return self.logits

    def move(self, moves: Moves) -> None:
        with torch.inference_mode():
            self._replay_moves()

    def _forward(self) -> None:
        self.logits.copy_(self._model.logits(self._forest.rows, self._forest.tables))


class CapturedChildren:
    """From a step's logits straight to where they are attached.

    What truncation takes is dear, and done only while a sequence asks for it.
    """

    def __init__(
        self,
        plain: ChildChooser,
        truncating: ChildChooser,
        model: CapturedModel,
        forest: CapturedForest,
        capture: Capture,
    ) -> None:
        self._model, self._forest = model, forest
        with torch.inference_mode():
            self._replay_plain, self._replay_truncating = (
                capture(partial(self._choose, each)) for each in (plain, truncating)
            )

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        replay = self._replay_truncating if self._forest.truncates else self._replay_plain
        with torch.inference_mode():
            replay()
        return self._forest.chosen

    def _choose(self, children: ChildChooser) -> None:
        found = children.of(self._model.logits, self._forest.tables, self._forest.rows)
        for place, said in zip(self._forest.chosen, found, strict=True):
            place.copy_(said)
