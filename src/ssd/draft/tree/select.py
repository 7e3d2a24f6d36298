"""Selects the rows of the next forward: unread tokens of texts, then the nodes of highest priority.

A growth policy gives each node a distance from 0 up, as float32, so that its bits have its order; nodes with
the smallest distance are processed first. `ByValue` prefers the most likely nodes. `ByFanOut` follows the
published fan-outs (Kumar, Dao, May 2026): how many alternatives are prepared for "k accepted". Add a policy
here.

Keys are integers, so that ties are broken the same way everywhere: distance, then age, then slot and rank,
then the sequence's row. With several tenants that is the order within each tenant, and each row goes to the
tenant with the smallest usage by weight. Knows tables; does not know models.
"""

from typing import Protocol

import numpy as np

from ssd.config import GrowthPolicyName
from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.tables import (
    MAX_CHILDREN,
    NODE_BITS,
    NOTHING,
    Constants,
    Shape,
    Tables,
    TenantUsage,
    TreeRows,
)

Distances = tuple[Array, Array | None]
"""Float32 [S, F, C], and which nodes may be processed (None: all)."""


def geometric_fan_out(
    width: int, *, acceptance: float = 0.8, exponent: float = 1.0, depth: int = 8
) -> list[int]:
    """How many alternatives to the most likely token are prepared for "k accepted"; from `depth` on, none.

    F_k = F_0 · a^{k/(1+r)}, scaled so that they sum to the width.

    Acceptance and exponent are assumed, not measured. The published separate term for "all accepted" is left
    out: a rolling tree has no last token.
    """
    weights = acceptance ** (np.arange(depth) / (1 + exponent))
    fans: list[int] = np.maximum(1, np.round(weights / weights.sum() * width)).astype(int).tolist()
    return fans


class GrowthPolicy(Protocol):
    """A growth policy."""

    keeps_partings: bool
    """Whether it needs `Tables.parted`: where paths left the most likely one."""

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances: ...


class ByValue:
    """Most likely nodes first: deep where the draft is sure, wide where it is not."""

    keeps_partings = False

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances:
        return abs(xp.real(tables.child_value)), None


class ByFanOut:
    """A path may leave the most likely one once, at its k-th token, for one of the F_k next likely tokens.

    `parted` has the last two positions at which a path left the most likely one. They are absolute, so the
    policy knows for any later root how often the path left, and where.
    """

    keeps_partings = True

    def __init__(self, xp: Arrays, width: int) -> None:
        fans = geometric_fan_out(width)
        self._depth = len(fans)
        self._fans = xp.of([*fans, 0])

    def of(self, xp: Arrays, tables: Tables, known: Constants) -> Distances:
        base = (tables.length - 1)[:, None, None]
        position = (tables.position + 1)[:, :, None]
        is_likeliest = known.ranks == 0
        last = xp.where(is_likeliest, tables.parted[0][:, :, None], position)
        earlier = xp.where(is_likeliest, tables.parted[1][:, :, None], tables.parted[0][:, :, None])
        rank = xp.where(is_likeliest, tables.parted_rank[:, :, None], known.ranks)
        has_left = last > base
        left_at = xp.at_least(last - base - 1, 0)
        fan = self._fans[xp.at_most(left_at, self._depth)]
        may = (earlier <= base) & ~(has_left & (rank > fan))
        length = xp.where(has_left, position - last + 1, position - base)
        aside = xp.where(has_left, xp.exact(left_at) + known.ranks / 8, known.nought)
        return xp.real(length + 0.01 * aside), may


def growth_policy(name: GrowthPolicyName, xp: Arrays, shape: Shape) -> GrowthPolicy:
    match name:
        case "value":
            return ByValue()
        case "geometric":
            return ByFanOut(xp, shape.width)


_HIGH = 32
"""The upper half of a key is its priority, the lower half its place."""
_LOW_MASK = (1 << _HIGH) - 1
READ_FIRST = 1 << 30
"""Subtracted from keys of unread tokens: they are negative and come before all nodes."""
OLDEST = (1 << _HIGH - NODE_BITS) - 1 - MAX_CHILDREN


def select_rows(
    xp: Arrays,
    shape: Shape,
    known: Constants,
    tables: Tables,
    policy: GrowthPolicy,
    free: Array,
    usage: TenantUsage | None,
) -> TreeRows:
    """`free`: the result of `free_slots`. Without `usage` there is only one tenant."""
    best = _best_nodes(xp, shape, known, tables, policy)
    keys = _keys(xp, shape, known, tables, best)
    span = shape.ring + best.shape[1]
    if usage is not None:
        usage.wanted[: len(best)] = (keys < NOTHING).reshape(-1, span).sum(1)
    found = _chosen(xp, shape, known, tables, keys, usage)
    is_valid = found < NOTHING
    home = found // span
    sequence = xp.where(is_valid, home, known.zero)
    column = found - home * span
    is_read = is_valid & (column < shape.ring)
    is_node = is_valid & (column >= shape.ring)
    node = best[sequence, xp.at_least(xp.where(is_valid, column, known.zero) - shape.ring, 0)]
    node = xp.where(is_node, node & ((1 << NODE_BITS) - 1), known.zero)
    family, rank = node // shape.children, node % shape.children
    start = xp.searchsorted(home, home)
    order = known.rows[: len(found)] - start
    length = tables.length[sequence]
    read_at = tables.num_computed[sequence] + xp.where(is_read, column, known.zero)
    position = xp.where(is_node, tables.position[sequence, family] + 1, read_at)
    token = xp.where(
        is_node, tables.child_token[sequence, family, rank], tables.ring[sequence, read_at % shape.ring]
    )
    slot = xp.where(is_node, free[sequence, xp.at_most(order, free.shape[1] - 1)], known.root)
    seen = tables.ancestors[:, sequence, family] | known.bits[:, family]
    tree_slot = shape.tree_start(sequence) + xp.where(is_node, slot, known.zero)
    is_root = is_read & (position == length - 1)
    node_id = tables.first_id[sequence, family] + rank
    return TreeRows(
        sequence=sequence,
        home=home,
        token=token,
        position=position,
        context_len=xp.where(is_read, position + 1, length),
        ancestors=xp.where(is_node, seen, known.zero),
        target=xp.where(is_read, text_slot(xp, shape, tables, sequence, position), tree_slot),
        slot=slot,
        family=family,
        rank=rank,
        node_id=xp.where(is_node, node_id, tables.root_id[sequence]),
        value=xp.where(is_node, tables.child_value[sequence, family, rank], known.nought),
        start=start,
        key=keys[xp.where(is_valid, found, known.zero)],
        is_read=is_read,
        attaches=is_node | is_root,
    )


def text_slot(xp: Arrays, shape: Shape, tables: Tables, sequence: Array, position: Array) -> Array:
    """The KV slot of a position of the text."""
    block = tables.blocks[sequence, xp.at_most(position // shape.block, shape.blocks - 1)]
    return block * shape.block + position % shape.block


def _best_nodes(xp: Arrays, shape: Shape, known: Constants, tables: Tables, policy: GrowthPolicy) -> Array:
    """Keys [S, k] of the nodes of each tree that may be processed, best first.

    Free slots are divided over the steps left in the round: children of this step's best nodes may be better
    than this step's other nodes.
    """
    is_ready = tables.is_live & (tables.length == tables.num_computed)
    near = tables.is_used & (tables.position < tables.last_position[:, None]) & is_ready[:, None]
    distance, is_meant = policy.of(xp, tables, known)
    age = xp.at_most(tables.first_id - tables.root_id[:, None], OLDEST) << NODE_BITS
    room = shape.slots - tables.is_used[:, : shape.slots].sum(1)
    share = (room + tables.steps_left - 1) // tables.steps_left
    # A child is younger than its family's first child by its rank, which `nodes` includes.
    if xp.is_fixed:
        may = near[:, :, None] & tables.is_open
        may = may if is_meant is None else may & is_meant
        keys = (xp.whole(xp.bits(distance)) << _HIGH) | (age[:, :, None] + known.nodes)
        best = xp.smallest(xp.where(may, keys, known.nothing).reshape(len(keys), -1), len(known.best))
        return xp.where(known.best < share[:, None], best, known.nothing)
    # Most places of the tables hold no node: on a host it pays to look at the others only.
    place = near.nonzero()
    may = tables.is_open[place] if is_meant is None else tables.is_open[place] & is_meant[place]
    keys = (xp.whole(xp.bits(distance[place])) << _HIGH) | (age[place][:, None] + known.nodes[place[1]])
    return _smallest_of_each(xp, known, share, place[0].repeat(may.sum(1)), keys[may])


def _smallest_of_each(xp: Arrays, known: Constants, share: Array, tree: Array, keys: Array) -> Array:
    """For each tree its smallest keys [S, k], ascending, at most `share` of them.

    `keys` is flat; `tree` has the tree that each key belongs to.
    """
    order = xp.order(keys)
    order = order[xp.order(tree[order])]
    tree, keys = tree[order], keys[order]
    rank = np.arange(len(keys)) - xp.searchsorted(tree, tree)
    fits = rank < xp.at_most(share, len(known.best))[tree]
    best = xp.integers(len(share), len(known.best), fill=NOTHING)
    best[tree[fits], rank[fits]] = keys[fits]
    return best


def _keys(xp: Arrays, shape: Shape, known: Constants, tables: Tables, best: Array) -> Array:
    """Keys of all trees, flat [S · (ring + k)]: the order in which tokens are read and nodes processed."""
    behind = (tables.length - tables.num_computed)[:, None]
    # Texts with the fewest unread tokens first, and earlier tokens of a text first.
    due = (behind * shape.ring + known.ring - READ_FIRST) << _HIGH
    is_due = (known.ring < behind) & tables.is_live[:, None]
    keys = xp.joined((xp.where(is_due, due, known.nothing), best), 1)
    places = known.sequences[: len(keys), None] * keys.shape[1] + known.columns
    return ((keys >> _HIGH << _HIGH) | places).reshape(-1)


def _chosen(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, keys: Array, usage: TenantUsage | None
) -> Array:
    """Places in [S, ring + k] of the selected rows, ascending; `NOTHING` for unused rows."""
    if not xp.is_fixed:
        keys = keys[keys < NOTHING]
    top = xp.smallest(keys, min(shape.num_rows, len(keys)))
    # Tokens of a continuing text count as width; those of a new text do not.
    behind = tables.length - tables.num_computed
    width = shape.width + (behind * (tables.is_new & tables.is_live)).sum(0)
    is_chosen = (top < 0) | ((top < NOTHING) & (known.rows[: len(top)] < width))
    if usage is not None:
        # As many rows as there would be without tenants.
        top = _fair_order(xp, known, usage, keys)[: len(top)]
        is_chosen = known.rows[: len(top)] < is_chosen.sum(0)
    if not xp.is_fixed:
        return xp.smallest(top[is_chosen] & _LOW_MASK, len(top))
    chosen = xp.where(is_chosen, top & _LOW_MASK, known.nothing)
    return xp.smallest(chosen, len(top))


def _fair_order(xp: Arrays, known: Constants, usage: TenantUsage, keys: Array) -> Array:
    """All keys, ordered by the usage that their tenant would have with them."""
    keys = xp.smallest(keys, len(keys))
    tenant = usage.tenant[(keys & _LOW_MASK) // len(known.columns)]
    order = xp.order(tenant)
    keys, tenant = keys[order], tenant[order]
    number = known.candidates[: len(keys)] + 1 - xp.searchsorted(tenant, tenant)
    used = usage.used[tenant] + number / usage.weight[tenant]
    return keys[xp.order(xp.where(keys < NOTHING, used, known.last))]


def free_slots(xp: Arrays, shape: Shape, known: Constants, tables: Tables) -> Array:
    """The free slots of each tree, ascending, as many as a step can use."""
    slots = known.families[: shape.slots]
    is_used = tables.is_used[:, : shape.slots]
    free = xp.where(is_used, known.root, slots)
    return xp.smallest(free, min(shape.slots, shape.width + shape.lookup))
