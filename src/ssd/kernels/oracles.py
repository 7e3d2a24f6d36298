"""What kernels must give, in torch, where no other module says it."""

import torch
from torch import Tensor
from torch.nn import functional

from ssd.sampling.draws import Draws
from ssd.sampling.noise import noise_of_tokens


def children_of_rows(
    logits: Tensor, draws: Draws, floors: Tensor | None, count: int, head_tokens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`vocabulary.children_of`: of equal scores the lower column comes first."""
    num_rows, num_columns = logits.shape
    device = logits.device
    ids = torch.arange(num_columns, device=device) if head_tokens is None else head_tokens
    owners = torch.arange(num_rows, device=device).repeat_interleave(num_columns)
    noise = noise_of_tokens(draws.seeds, draws.positions, owners, ids.repeat(num_rows)).view(logits.shape)
    is_greedy = (draws.temperatures == 0.0).unsqueeze(1)
    scores = logits.float() / torch.where(is_greedy, 1.0, draws.temperatures.unsqueeze(1))
    noisy = scores + noise
    if floors is not None:
        noisy = noisy.masked_fill(scores < floors.unsqueeze(1), -torch.inf)
    total = torch.where(is_greedy, scores, noisy)
    best, order = total.sort(dim=1, descending=True, stable=True)
    lacking = max(0, count - num_columns)
    best = functional.pad(best[:, :count], (0, lacking), value=-torch.inf)
    order = functional.pad(order[:, :count], (0, lacking))
    is_child = best > -torch.inf
    shares = best - total.logsumexp(1, keepdim=True)
    return torch.where(is_child, ids[order], 0), torch.where(is_child, shares, -torch.inf)
