"""Runs the coupled decision on the device of the logits: by our kernel where Triton runs, else by torch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.sampling import CoupledDecision, Draws
from ssd.sampling.coupled import pieces_of
from ssd.sampling.truncation import whole_floors
from ssd.sampling.whole import scaled


def decision_on(device: torch.device, decision: CoupledDecision) -> Callable[[Tensor], Tensor]:
    decision = decision.on(device)
    if device.type == "cpu" or decision.draws is None:
        return decision
    # Imported here: Triton takes long to import and is useful on a GPU only.
    from ssd.kernels.language import can_launch

    return FusedDecision(decision.draws) if can_launch(device) else decision


@dataclass(frozen=True, slots=True)
class FusedDecision:
    """The coupled decision by our kernel. Has never run on a GPU."""

    draws: Draws

    def __call__(self, logits: Tensor) -> Tensor:
        """The token [R] of each row, on the device of the logits."""
        from ssd.kernels.decide import decide_rows

        if len(logits) != len(self.draws):
            raise ValueError(f"{len(logits)} rows of logits for {len(self.draws)} draws: pass one for each")
        return decide_rows(logits, self.draws, self._floors(logits))

    def _floors(self, logits: Tensor) -> Tensor | None:
        if self.draws.truncation is None:
            return None
        temperatures = torch.where(self.draws.temperatures == 0.0, 1.0, self.draws.temperatures)
        floors = [
            whole_floors(scaled(logits[each], temperatures[each]), self.draws.truncation.at(each))
            for each in pieces_of(logits)
        ]
        return floors[0] if len(floors) == 1 else torch.cat(floors)
