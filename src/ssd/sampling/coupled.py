"""The coupled decision as tensors: a token for each row of logits, and the number of accepted tokens.

    y = argmax(z/T + g(seed, position, ·));   T = 0: argmax(z);   a drafted token is accepted if it is y

z are logits after all processors that depend on tokens (penalties, masks). Truncation is passed in, or was
applied before. There is no Python loop over rows and no copy to the host. Does not know requests, models or
drafts.
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
"""Stands for "no token" in tensors of tokens."""

# For vocabularies up to this size, noise for all tokens is faster than finding the possible winners.
_FEW_TOKENS = 512
# Scores per piece. Each takes some 44 bytes, so a piece takes at most 1.5 GB.
_MOST_SCORES = 1 << 25


def decide_tokens(logits: Tensor, draws: Draws) -> Tensor:
    """The token [R] of each row of logits [R, V], which are not changed."""
    if logits.ndim != 2 or len(logits) != len(draws):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} for {len(draws)} rows: pass one row of logits for each"
        )
    if logits.device.type == "cpu" and logits.shape[1] > _FEW_TOKENS and not is_recorded():
        return decide_pruned(logits, draws)
    return torch.cat([decide_whole(logits[each], draws.at(each)) for each in pieces_of(logits)])


def pieces_of(logits: Tensor) -> list[slice]:
    """The rows [R, V] in pieces that are processed one after the other, to bound memory."""
    most = max(1, _MOST_SCORES // logits.shape[1])
    return [slice(start, start + most) for start in range(0, len(logits), most)]


@dataclass(frozen=True, slots=True)
class CoupledDecision:
    """Decides the tokens of a step in which every row needs only its logits, seed and position."""

    draws: Draws | None
    """None: every row is greedy."""

    def on(self, device: torch.device) -> CoupledDecision:
        return self if self.draws is None else CoupledDecision(self.draws.to(device))

    def __call__(self, logits: Tensor) -> Tensor:
        """The token [R] of each row, on the logits' device."""
        return argmax(logits) if self.draws is None else decide_tokens(logits, self.draws)


def count_accepted(tokens: Tensor, drafted: Tensor, starts: Tensor) -> Tensor:
    """How many drafted tokens of each sequence are accepted [S]: those before its first mismatch.

    `drafted` [R]: the drafted token to compare with each row's token; `NOTHING`: none. A sequence
    has the rows from its start [S] to the next one's.
    """
    num_rows = len(tokens)
    indices = torch.arange(num_rows + 1, device=tokens.device)
    missed = torch.where(tokens == drafted, num_rows, indices[:-1])
    # For each row: the first row from there on whose token was not drafted; the end if there is none.
    ahead = torch.cat((missed, indices[-1:])).flip(0).cummin(0).values.flip(0)
    ends = torch.cat((starts[1:], indices[-1:]))
    return ahead[starts].minimum(ends) - starts


def emitted_tokens(tokens: Tensor, accepted: Tensor, starts: Tensor, width: int) -> Tensor:
    """Each sequence's new tokens [S, width]: the accepted ones and one more, then `NOTHING`."""
    steps = torch.arange(width, device=tokens.device)
    indices = (starts.unsqueeze(1) + steps).clamp(max=len(tokens) - 1)
    return torch.where(steps <= accepted.unsqueeze(1), tokens[indices], NOTHING)
