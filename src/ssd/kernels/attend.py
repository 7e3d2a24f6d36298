"""Attention over paged keys, for rows of texts and trees.

A tile contains rows of one sequence; the query heads that share a key head are folded into its rows, so each
key is read once. A program reads its share of the sequence's pages and, for nodes of a tree, the tree slots
whose bits are set. Keys may be split among programs; `merge` joins their partial results by log-sum-exp. Keys
that no row of the tile sees are never read, so they may be NaN. Knows pages and bits. Does not know batches.
`attention/paged.py` is the reference.

Arguments of `attend`. `seen`: how many keys of its sequence's pages each row sees. `paths`: bits of the tree
slots that it sees. `split_keys` > 0: splits end at multiples of it; 0: they divide the tile's keys evenly.
`scale` includes log2(e), because softmax is computed in base 2. If split, `out` holds float32 parts
[split, row, head, d], and `masses` their log-sum-exp in base 2.
"""

from ssd.kernels.language import jit, tl


@jit(do_not_specialize=("num_rows", "width"))
def find_tiles(sequences, firsts, num_rows, width, block: tl.constexpr):
    """Writes the first row of each tile, ascending. One program for all rows."""
    rows = tl.arange(0, block)
    is_row = rows < num_rows
    here = tl.load(sequences + rows, mask=is_row, other=-1)
    before = tl.load(sequences + rows - 1, mask=is_row & (rows > 0), other=-1)
    run_start = tl.associative_scan(tl.where(here != before, rows, 0), 0, _larger)
    begins = is_row & ((rows - run_start) % width == 0)
    tile = tl.cumsum(begins.to(tl.int32), 0) - 1
    tl.store(firsts + tile, rows, mask=begins)


@jit()
def _larger(a, b):
    return tl.maximum(a, b)


@jit()
def _read(keys_of_head, values_of_head, spots, dims, is_key):
    """Keys [d, block] and values [block, d] of a head, at these offsets."""
    keys = tl.load(keys_of_head + spots[None, :] + dims[:, None], mask=is_key[None, :], other=0.0)
    values = tl.load(values_of_head + spots[:, None] + dims[None, :], mask=is_key[:, None], other=0.0)
    return keys, values


@jit()
def _absorb(queries, keys, values, visible, top, total, mixed, scale):
    """Adds a block of keys to a running softmax in base 2: largest score, sum, and weighted values."""
    scores = tl.dot(queries, keys, input_precision="ieee") * scale
    scores = tl.where(visible, scores, float("-inf"))
    risen = tl.maximum(top, tl.max(scores, 1))
    # Avoids −inf − (−inf), which is NaN, for a row that has seen no key yet.
    base = tl.where(risen == float("-inf"), 0.0, risen)
    weights = tl.exp2(scores - base[:, None])
    fading = tl.exp2(top - base)
    total = total * fading + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * fading[:, None], input_precision="ieee")
    return risen, total, mixed


@jit(do_not_specialize=("num_rows", "num_splits", "split_keys", "table_stride"))
def attend(
    queries,
    pool_keys,
    pool_values,
    out,
    masses,
    firsts,
    sequences,
    seen,
    paths,
    tables,
    tree_starts,
    scale,
    num_rows,
    num_heads,
    num_splits,
    split_keys,
    query_row_stride,
    query_head_stride,
    pool_head_stride,
    table_stride,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    page: tl.constexpr,
    folded: tl.constexpr,
    block: tl.constexpr,
    num_nodes: tl.constexpr,
    is_split: tl.constexpr,
):
    """One program per tile, key head and split. The arguments are explained at the top of this file."""
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(firsts + tl.program_id(0) + 1)
    if first >= last:
        return
    kv_head, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    places, dims = tl.arange(0, folded), tl.arange(0, head_dim)
    row, head = (first + places // group).to(tl.int64), kv_head * group + places % group
    is_row = row < last
    query = tl.load(
        queries + row[:, None] * query_row_stride + head[:, None] * query_head_stride + dims[None, :],
        mask=is_row[:, None],
        other=0.0,
    )
    sequence = tl.load(sequences + first)
    num_seen = tl.load(seen + row, mask=is_row, other=0)
    num_keys = tl.max(num_seen, 0)
    share = split_keys.to(tl.int64)
    if split_keys == 0:
        share = tl.cdiv(tl.cdiv(num_keys, num_splits), block) * block
    begin = split * share
    end = tl.minimum(begin + share, num_keys)
    top = tl.full([folded], float("-inf"), tl.float32)
    total = tl.zeros([folded], tl.float32)
    mixed = tl.zeros([folded, head_dim], tl.float32)
    keys_of_head, values_of_head = (
        pool_keys + kv_head * pool_head_stride,
        pool_values + kv_head * pool_head_stride,
    )
    for start in range(begin, end, block):
        place = start + tl.arange(0, block)
        is_key = place < end
        number = tl.load(tables + sequence * table_stride + place // page, mask=is_key, other=0)
        spot = (number * page + place % page) * head_dim
        keys, values = _read(keys_of_head, values_of_head, spot, dims, is_key)
        visible = is_key[None, :] & (place[None, :] < num_seen[:, None])
        top, total, mixed = _absorb(query, keys, values, visible, top, total, mixed, scale)
    if num_nodes > 0:  # noqa: SIM102 (the first condition is known at compile time, the second is not)
        # One split reads the tree: the last, which has the fewest pages.
        if split == num_splits - 1:
            tree_start = tl.load(tree_starts + sequence)
            for corner in tl.range(0, num_nodes, block, num_stages=1):
                node = corner + tl.arange(0, block)
                word = tl.load(paths + row * (num_nodes // 64) + corner // 64, mask=is_row, other=0)
                on_path = ((word[:, None] >> (node % 64)[None, :]) & 1) != 0
                is_node = tl.max(on_path.to(tl.int32), 0) != 0
                if tl.max(is_node.to(tl.int32), 0) != 0:
                    keys, values = _read(
                        keys_of_head, values_of_head, (tree_start + node) * head_dim, dims, is_node
                    )
                    top, total, mixed = _absorb(query, keys, values, on_path, top, total, mixed, scale)
    # A row that has seen no key here: do not divide by 0. A mass of −inf gives its part no weight.
    sums = tl.where(total == 0.0, 1.0, total)
    mixed = mixed / sums[:, None]
    place_of_row = row * num_heads + head
    if is_split:
        place_of_row += split.to(tl.int64) * num_rows * num_heads
        tl.store(
            masses + place_of_row, tl.where(total == 0.0, float("-inf"), top + tl.log2(sums)), mask=is_row
        )
        is_row = is_row & (total > 0.0)
    spots = place_of_row[:, None] * head_dim + dims[None, :]
    tl.store(out + spots, mixed.to(out.dtype.element_ty), mask=is_row[:, None])


@jit(do_not_specialize=("num_splits",))
def merge(parts, masses, out, num_splits, head_dim: tl.constexpr):
    """Joins the parts of `attend`, one program per row and head.

    Adds the parts in order, so that further empty parts do not change a bit of the result.
    """
    place, num_places = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    dims = tl.arange(0, head_dim)
    top = float("-inf")
    for split in range(num_splits):
        top = tl.maximum(top, tl.load(masses + split * num_places + place))
    base = tl.where(top == float("-inf"), 0.0, top)
    total, mixed = tl.zeros([head_dim], tl.float32), tl.zeros([head_dim], tl.float32)
    for split in range(num_splits):
        weight = tl.zeros([head_dim], tl.float32) + tl.exp2(
            tl.load(masses + split * num_places + place) - base
        )
        spots = (split * num_places + place) * head_dim + dims
        mixed += weight * tl.load(parts + spots, mask=weight > 0.0, other=0.0)
        total += weight
    mixed = mixed / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place * head_dim + dims, mixed.to(out.dtype.element_ty))
