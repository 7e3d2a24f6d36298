"""Rotates queries and keys, and writes keys and values to the pools: one launch for a layer.

`Rotation.apply` of `attention/rotation.py` and `index_copy_` are the references. Products and sums are
rounded one by one, so rotated heads have torch's bits. Knows rows and slots. Does not know which sequence
owns them.
"""

import torch
from torch import Tensor

from ssd.kernels.language import jit, launching_on, tl


@jit()
def rotate_and_write(
    heads,
    values,
    cosines,
    sines,
    queries,
    pool_keys,
    pool_values,
    slots,
    heads_row_stride,
    values_row_stride,
    pool_head_stride,
    group: tl.constexpr,
    lanes: tl.constexpr,
    half: tl.constexpr,
):
    """One program per row and key head: the `group` queries that share the key, the key, and its value.

    `lanes`: a power of two, more than `group`.
    """
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1) * group
    lane, dims = tl.arange(0, lanes)[:, None], tl.arange(0, half)[None, :]
    is_query, is_key = (lane < group) & (dims >= 0), (lane == group) & (dims >= 0)
    place = tl.where(lane < group, kv_head * group + lane, num_heads + kv_head) * 2 * half + dims
    head = heads + row * heads_row_stride + place
    first = tl.load(head, mask=is_query | is_key, other=0.0).to(tl.float32)
    second = tl.load(head + half, mask=is_query | is_key, other=0.0).to(tl.float32)
    cos, sin = tl.load(cosines + row * half + dims), tl.load(sines + row * half + dims)
    low = (first * cos - second * sin).to(queries.dtype.element_ty)
    high = (second * cos + first * sin).to(queries.dtype.element_ty)
    query = queries + row * num_heads * 2 * half + place
    tl.store(query, low, mask=is_query)
    tl.store(query + half, high, mask=is_query)
    spot = kv_head * pool_head_stride + tl.load(slots + row) * 2 * half
    tl.store(pool_keys + spot + dims + 0 * lane, low, mask=is_key)
    tl.store(pool_keys + spot + dims + half + 0 * lane, high, mask=is_key)

    whole = tl.arange(0, 2 * half)
    value = tl.load(values + row * values_row_stride + kv_head * 2 * half + whole)
    # A tile reads a value if any of its rows sees it, and 0 · NaN is NaN: a rejected token's value must not
    # reach rows that do not see it. Rows that see it still get NaN, from its key.
    wide = value.to(tl.float32)
    tl.store(pool_values + spot + whole, tl.where(tl.abs(wide) < float("inf"), wide, 0.0).to(value.dtype))


_PAIRS_PER_WARP = 512
"""Of elements that are rotated together."""


def rotate_and_write_kv(
    heads: Tensor,
    values: Tensor,
    cosines: Tensor,
    sines: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    slots: Tensor,
) -> Tensor:
    """Rotates queries and keys [rows, heads + kv_heads, d]; returns the queries.

    Writes keys and values [rows, kv_heads, d] to slots [rows] of a layer's pools [kv_heads, slots, d].
    """
    num_rows, num_kv_heads, head_dim = values.shape
    num_heads = heads.shape[1] - num_kv_heads
    queries = torch.empty(num_rows, num_heads, head_dim, dtype=heads.dtype, device=heads.device)
    group, half = num_heads // num_kv_heads, head_dim // 2
    lanes = 1 << group.bit_length()
    with launching_on(heads):
        rotate_and_write[(num_rows, num_kv_heads)](
            heads,
            values,
            cosines,
            sines,
            queries,
            pool_keys,
            pool_values,
            slots,
            heads.stride(0),
            values.stride(0),
            pool_keys.stride(0),
            group=group,
            lanes=lanes,
            half=half,
            num_warps=max(1, min(8, lanes * half // _PAIRS_PER_WARP)),
            # A fused multiply-add would round once where torch rounds twice.
            enable_fp_fusion=False,
        )
    return queries
