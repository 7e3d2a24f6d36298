"""Writes keys and values to the pools, and copies them between slots: one launch for both.

`index_copy_` and `KVPool.move` are the references. Knows slots. Does not know which sequence owns them.
"""

from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl


@jit()
def write(
    keys,
    values,
    pool_keys,
    pool_values,
    slots,
    num_heads,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    pool_head_stride,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
):
    """One program per row: all heads of its key and value."""
    row = tl.program_id(0).to(tl.int64)
    head, dims = tl.arange(0, heads)[:, None], tl.arange(0, head_dim)[None, :]
    is_head = (head < num_heads) & (dims >= 0)
    slot = tl.load(slots + row)
    spots = head.to(tl.int64) * pool_head_stride + slot * head_dim + dims
    key = tl.load(keys + row * key_row_stride + head * key_head_stride + dims, mask=is_head)
    value = tl.load(values + row * value_row_stride + head * value_head_stride + dims, mask=is_head)
    # A tile reads a value if any of its rows sees it, and 0 · NaN is NaN: a rejected token's value must not
    # reach rows that do not see it. Rows that see it still get NaN, from its key.
    wide = value.to(tl.float32)
    value = tl.where(tl.abs(wide) < float("inf"), wide, 0.0).to(value.dtype)
    tl.store(pool_keys + spots, key, mask=is_head)
    tl.store(pool_values + spots, value, mask=is_head)


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


def write_kv(keys: Tensor, values: Tensor, pool_keys: Tensor, pool_values: Tensor, slots: Tensor) -> None:
    """Writes keys and values [rows, kv_heads, d] to slots [rows] of a layer's pools [kv_heads, slots, d]."""
    num_rows, num_heads, head_dim = keys.shape
    with launching_on(keys):
        write[(num_rows,)](
            keys,
            values,
            pool_keys,
            pool_values,
            slots,
            num_heads,
            keys.stride(0),
            keys.stride(1),
            values.stride(0),
            values.stride(1),
            pool_keys.stride(0),
            heads=1 << (num_heads - 1).bit_length(),
            head_dim=head_dim,
            num_warps=4,
        )


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
