"""Chooses each request's next drafted tokens on the device, from a copy of its mirror's tree.

Under asynchronous scheduling the host launches a step before it knows the tokens of the one before. The
device knows them: a program per request starts at the mirror's root, follows the tokens that came since, and
then takes the likeliest child K times. A missing node ends the path. Knows tables of nodes, not drafts.
"""

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl

COLUMNS = 4
"""Of a node: its id, its token, its first child's id, and its number of children."""
HEADS = 3
"""Of a request: its row in the table (-1: none), its root's id, and the number of tokens up to the root."""


@jit(do_not_specialize=("text_stride",))
def walk_trees(
    drafts,
    counts,
    nodes,
    heads,
    request_rows,
    lengths,
    texts,
    text_stride,
    num_sampled,
    slots: tl.constexpr,
    lanes: tl.constexpr,
    most_behind: tl.constexpr,
    num_steps: tl.constexpr,
):
    """Program (request). `lanes`: a power of two, at least the largest number of children."""
    request = tl.program_id(0).to(tl.int64)
    row = tl.load(heads + request * 3).to(tl.int64)
    node = tl.load(heads + request * 3 + 1)
    length = tl.load(heads + request * 3 + 2)
    text = tl.load(request_rows + request).to(tl.int64)
    behind = tl.load(lengths + text) - length
    has_sampled = tl.load(num_sampled + request) > 0
    is_known = (row >= 0) & (behind >= 0) & (behind <= most_behind) & has_sampled
    tree = nodes + row * slots * 4
    places = tl.arange(0, lanes)
    for step in range(tl.where(is_known, behind, 0)):
        token = tl.load(texts + text * text_stride + length + step, mask=is_known, other=-1)
        own = tree + (node & (slots - 1)) * 4
        is_node = is_known & (tl.load(own, mask=is_known, other=-1) == node)
        children = tl.load(own + 2, mask=is_node, other=0) + places
        # A node that is missing has no children.
        is_child = places < tl.load(own + 3, mask=is_node, other=0)
        at = tree + (children & (slots - 1)) * 4
        is_there = is_child & (tl.load(at, mask=is_child, other=-1) == children)
        is_token = is_there & (tl.load(at + 1, mask=is_there, other=-1) == token)
        node = tl.max(tl.where(is_token, children, -1), 0)
        is_known = node >= 0
    count = 0
    for step in range(num_steps):
        own = tree + (node & (slots - 1)) * 4
        is_known = is_known & (tl.load(own, mask=is_known, other=-1) == node)
        is_known = is_known & (tl.load(own + 3, mask=is_known, other=0) > 0)
        child = tl.load(own + 2, mask=is_known, other=0)
        at = tree + (child & (slots - 1)) * 4
        is_known = is_known & (tl.load(at, mask=is_known, other=-1) == child)
        token = tl.load(at + 1, mask=is_known, other=0)
        tl.store(drafts + request * num_steps + step, token.to(tl.int64))
        node = tl.where(is_known, child, node)
        count += is_known.to(tl.int32)
    tl.store(counts + request, count)


def walk(
    nodes: Tensor,
    heads: Tensor,
    *,
    slots: int,
    request_rows: Tensor,
    lengths: Tensor,
    texts: Tensor,
    num_sampled: Tensor,
    num_steps: int,
    most_behind: int,
    most_children: int,
) -> tuple[Tensor, Tensor]:
    """Drafted tokens [B, K], 0 where none is known, and how many are known [B].

    `nodes` [rows · slots, COLUMNS] and `heads` [B, HEADS] are int32. A request's text is at `request_rows` of
    `texts`, `lengths` tokens long. One that has sampled nothing in this step gets no drafted tokens.
    """
    num_requests = len(heads)
    drafts = torch.empty(num_requests, num_steps, dtype=torch.int64, device=nodes.device)
    counts = torch.empty(num_requests, dtype=torch.int32, device=nodes.device)
    with launching_on(nodes):
        walk_trees[(num_requests,)](
            drafts,
            counts,
            nodes,
            heads,
            request_rows,
            lengths,
            texts,
            texts.stride(0),
            num_sampled,
            slots=slots,
            lanes=1 << (most_children - 1).bit_length(),
            most_behind=most_behind,
            num_steps=num_steps,
            num_warps=1,
        )
    return drafts, counts
