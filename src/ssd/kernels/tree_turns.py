"""Chooses which of the ranked rows a step takes: tenants with the least weighted usage first.

torch sorts the keys of all candidate rows (tens of thousands) twice. Between the two sorts, one program per
tenant numbers its keys; after them, one program takes the first keys. `_chosen` and `_fair_order` of
`draft/tree/select.py` are the references. Knows keys. Does not know nodes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl
from ssd.kernels.trees import Sizes, up_to_power

_BLOCK = 1024


class UsageColumns(NamedTuple):
    """The columns of `Turns` in `draft/tree`."""

    tenant: Tensor
    used: Tensor
    weight: Tensor


class RowDemand(NamedTuple):
    """For each tree, the number of candidate rows, of rows that read text, and of those of a new text."""

    wanted: Tensor
    due: Tensor
    beside: Tensor


class Queue(NamedTuple):
    """All keys, grouped by tenant, and the tenant's usage after each key."""

    keys: Tensor
    used: Tensor
    found: Tensor
    """Indices of the rows that are taken, ascending."""

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
    """One program per tenant: writes its keys after those of earlier tenants."""
    me = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, sequences)
    is_sequence = number < num_sequences
    tenants = tl.load(usage.tenant + number, mask=is_sequence, other=-1)
    if tl.sum((tenants == me).to(tl.int32), 0) == 0:
        return
    # All sequences have the same number of keys, including unused ones.
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
    """One program: takes the first of the queue; their number does not depend on tenants."""
    number, row = tl.arange(0, sequences), tl.arange(0, rows)
    is_sequence = number < num_sequences
    wanted = tl.sum(tl.load(demand.wanted + number, mask=is_sequence, other=0), 0)
    due = tl.sum(tl.load(demand.due + number, mask=is_sequence, other=0), 0)
    # Rows that read a new text do not count towards the width; other rows do.
    wide = width + tl.sum(tl.load(demand.beside + number, mask=is_sequence, other=0), 0)
    count = tl.minimum(tl.maximum(due, tl.minimum(wanted, wide)), num_found)
    is_taken = row < count
    key = tl.load(queue.keys + tl.load(order + row, mask=is_taken, other=0), mask=is_taken, other=0)
    found = tl.sort(tl.where(is_taken, key & 0xFFFFFFFF, nothing))
    tl.store(queue.found + row, found, mask=row < num_found)


def take_turns(
    keys: Tensor, usage: UsageColumns, demand: RowDemand, queue: Queue, sizes: Sizes, nothing: int
) -> None:
    """Two launches and two sorts; writes the result to `queue.found`."""
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
