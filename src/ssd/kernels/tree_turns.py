"""Which of the ranked rows a step takes: whoever has had least, by its weight, comes first with its best.

Two sorts over all that trees would have, tens of thousands of keys, are torch's; between them each tenant
numbers its own, and behind them one program takes the first. `_chosen` and `_fair_order` of
`draft/tree/select.py` are the oracles. Knows keys, not nodes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.trees import Sizes, up_to_power

_BLOCK = 1024


class UsageColumns(NamedTuple):
    """`Turns` of the same place."""

    tenant: Tensor
    used: Tensor
    weight: Tensor


class RowDemand(NamedTuple):
    """Of each tree: how many rows it would take, how many of them read a text, and how many of a new one."""

    wanted: Tensor
    due: Tensor
    beside: Tensor


class Queue(NamedTuple):
    """All keys, tenant by tenant, and how much each tenant would have had with it."""

    keys: Tensor
    used: Tensor
    found: Tensor
    """Places of those that are taken, ascending."""

    @classmethod
    def of(cls, num_keys: int, num_rows: int, device: torch.device) -> "Queue":
        keys = torch.zeros(num_keys, dtype=torch.int64, device=device)
        found = torch.zeros(min(num_rows, num_keys), dtype=torch.int64, device=device)
        return cls(keys, torch.zeros(num_keys, dtype=torch.float64, device=device), found)


@jit()
def queue_up(
    ascending,
    usage,
    queue,
    num_keys,
    num_sequences,
    span,
    nothing: tl.constexpr,
    sequences: tl.constexpr,
    block: tl.constexpr,
):
    """Program (tenant): its keys, behind those of tenants before it."""
    me = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, sequences)
    is_sequence = number < num_sequences
    tenants = tl.load(usage.tenant + number, mask=is_sequence, other=-1)
    if tl.sum((tenants == me).to(tl.int32), 0) == 0:
        return
    # Every sequence has as many keys, of nothing among them.
    before = tl.sum((is_sequence & (tenants < me)).to(tl.int64), 0) * span
    used, weight = tl.load(usage.used + me), tl.load(usage.weight + me)
    count = tl.zeros([], tl.int64)
    for start in range(0, num_keys, block):
        place = start + tl.arange(0, block)
        is_key = place < num_keys
        key = tl.load(ascending + place, mask=is_key, other=nothing)
        tenant = tl.load(usage.tenant + (key & 0xFFFFFFFF) // span, mask=is_key, other=-1)
        is_mine = (tenant == me).to(tl.int64)
        mine = count + tl.cumsum(is_mine, 0)
        then = tl.where(key < nothing, used + mine.to(tl.float64) / weight, float("inf"))
        tl.store(queue.keys + before + mine - 1, key, mask=is_mine != 0)
        tl.store(queue.used + before + mine - 1, then, mask=is_mine != 0)
        count += tl.sum(is_mine, 0)


@jit()
def take(
    order,
    queue,
    demand,
    width,
    num_found,
    num_sequences,
    nothing: tl.constexpr,
    rows: tl.constexpr,
    sequences: tl.constexpr,
):
    """One program: the first of the queue, as many as there would be without tenants."""
    number, row = tl.arange(0, sequences), tl.arange(0, rows)
    is_sequence = number < num_sequences
    wanted = tl.sum(tl.load(demand.wanted + number, mask=is_sequence, other=0), 0)
    due = tl.sum(tl.load(demand.due + number, mask=is_sequence, other=0), 0)
    # A text that goes on is read within the width; one that is new, beside it.
    wide = width + tl.sum(tl.load(demand.beside + number, mask=is_sequence, other=0), 0)
    count = tl.minimum(tl.maximum(due, tl.minimum(wanted, wide)), num_found)
    is_taken = row < count
    key = tl.load(queue.keys + tl.load(order + row, mask=is_taken, other=0), mask=is_taken, other=0)
    found = tl.sort(tl.where(is_taken, key & 0xFFFFFFFF, nothing))
    tl.store(queue.found + row, found, mask=row < num_found)


def take_turns(
    keys: Tensor, usage: UsageColumns, demand: RowDemand, queue: Queue, sizes: Sizes, nothing: int
) -> None:
    """Two launches and two sorts; what is found lies in the queue."""
    num_sequences, span = keys.shape
    ascending = keys.view(-1).sort().values
    sequences = up_to_power(num_sequences)
    with launching_on(keys):
        queue_up[(num_sequences,)](
            ascending,
            usage,
            queue,
            keys.numel(),
            num_sequences,
            span,
            nothing=nothing,
            sequences=sequences,
            block=min(_BLOCK, up_to_power(keys.numel())),
            num_warps=4,
        )
        order = queue.used.sort(stable=True).indices
        take[(1,)](
            order,
            queue,
            demand,
            sizes.width,
            len(queue.found),
            num_sequences,
            nothing=nothing,
            rows=max(2, up_to_power(len(queue.found))),
            sequences=sequences,
            num_warps=4,
        )
