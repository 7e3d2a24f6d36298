"""Copies keys and values between slots: one launch for all layers.

`KVPool.move` is the reference. Knows slots. Does not know which sequence owns them.
"""

from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl


@jit()
def move(
    pool_keys,
    pool_values,
    sources,
    destinations,
    num_heads,
    pool_head_stride,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
):
    """One program per move and group of heads, over all layers."""
    number = tl.program_id(0)
    source, destination = tl.load(sources + number), tl.load(destinations + number)
    # Padding moves the scratch slot onto itself.
    if source != destination:
        head = tl.program_id(1) * heads + tl.arange(0, heads)[:, None]
        dims = tl.arange(0, head_dim)[None, :]
        is_head = (head < num_heads) & (dims >= 0)
        start = head.to(tl.int64) * pool_head_stride + dims
        key = tl.load(pool_keys + start + source * head_dim, mask=is_head)
        value = tl.load(pool_values + start + source * head_dim, mask=is_head)
        tl.store(pool_keys + start + destination * head_dim, key, mask=is_head)
        tl.store(pool_values + start + destination * head_dim, value, mask=is_head)


_HEADS_AT_ONCE = 16


def move_kv(pool_keys: Tensor, pool_values: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copies slots of pools [layers, kv_heads, slots, d] to other slots, in every layer.

    No destination may be a source of another move, since programs run in any order.
    """
    num_layers, num_heads, _, head_dim = pool_keys.shape
    all_heads = num_layers * num_heads
    with launching_on(pool_keys):
        move[(sources.numel(), -(-all_heads // _HEADS_AT_ONCE))](
            pool_keys,
            pool_values,
            sources,
            destinations,
            all_heads,
            pool_keys.stride(1),
            heads=_HEADS_AT_ONCE,
            head_dim=head_dim,
            num_warps=4,
        )
