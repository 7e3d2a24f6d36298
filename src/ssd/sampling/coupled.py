"""The coupled decision as tensors: a token for each row of logits, and how many drafted ones it accepts.

    y = argmax(z/T + g(seed, position, ·));   T = 0: argmax(z);   a drafted token is accepted if it is y

z are logits after everything that depends on tokens (penalties, masks); truncation is given along, or done
already. No Python works row by row, and nothing is read back to the host: who needs the tokens there reads
them once. Knows no requests, no models, and not who drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.sampling.draws import Draws
from ssd.sampling.philox import is_recorded
from ssd.sampling.pruned import decide_pruned
from ssd.sampling.select import argmax
from ssd.sampling.whole import decide_whole

NOTHING = -1
"""In the place of a token where there is none."""

# So few get their noise sooner than some of them are picked out.
_FEW_TOKENS = 512
# Some 44 bytes each are needed at a time: 1.5 GB, however many rows a step has.
_MOST_SCORES = 1 << 25


def decide_tokens(logits: Tensor, draws: Draws) -> Tensor:
    """The token [R] of each row of logits [R, V], which are left as they are."""
    if logits.ndim != 2 or len(logits) != len(draws):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for {len(draws)} rows: pass one row of logits for each"
        )
    if logits.device.type == "cpu" and logits.shape[1] > _FEW_TOKENS and not is_recorded():
        return decide_pruned(logits, draws)
    return torch.cat([decide_whole(logits[each], draws.at(each)) for each in pieces_of(logits)])


def pieces_of(logits: Tensor) -> list[slice]:
    """Rows [R, V] in pieces that are looked at one after the other: memory is finite."""
    most = max(1, _MOST_SCORES // logits.shape[1])
    return [slice(start, start + most) for start in range(0, len(logits), most)]


@dataclass(frozen=True, slots=True)
class CoupledDecision:
    """What is made of a step's logits where each row's token is decided by its draw alone."""

    draws: Draws | None
    """None: every row is greedy."""

    def on(self, device: torch.device) -> CoupledDecision:
        return self if self.draws is None else CoupledDecision(self.draws.to(device))

    def __call__(self, logits: Tensor) -> Tensor:
        """The token [R] of each row, where the logits are."""
        return argmax(logits) if self.draws is None else decide_tokens(logits, self.draws)


def count_accepted(tokens: Tensor, drafted: Tensor, starts: Tensor) -> Tensor:
    """How many drafted tokens each sequence keeps [S]: those from its first row on that were decided.

    `drafted` [R] holds what was guessed for each row's own token, `NOTHING` where nothing was. A sequence
    has the rows from its start [S] to the next one's.
    """
    num_rows = len(tokens)
    places = torch.arange(num_rows + 1, device=tokens.device)
    missed = torch.where(tokens == drafted, num_rows, places[:-1])
    # From each row on, the first that was not foretold; and after the last row, the end.
    ahead = torch.cat((missed, places[-1:])).flip(0).cummin(0).values.flip(0)
    ends = torch.cat((starts[1:], places[-1:]))
    return ahead[starts].minimum(ends) - starts


def emitted_tokens(tokens: Tensor, accepted: Tensor, starts: Tensor, width: int) -> Tensor:
    """What each sequence gains [S, width]: its accepted tokens and the one after, then `NOTHING`."""
    steps = torch.arange(width, device=tokens.device)
    places = (starts.unsqueeze(1) + steps).clamp(max=len(tokens) - 1)
    return torch.where(steps <= accepted.unsqueeze(1), tokens[places], NOTHING)
