"""Applies a batch of outcomes: roots advance, lost branches are dropped, and guesses are counted.

No tree is walked: a slot is on the accepted path if its token and those of all its ancestors (bits) match the
outcome. Keys of accepted nodes move to the sequence's KV blocks. The host checks the order of outcomes.

Calibration corrects the draft's log-probabilities by how often the target accepted similar guesses. The
model's probabilities rank guesses, but do not say how often the target agrees. Each decided token shows for
every guess at its position whether it was right. Guesses are counted in cells: by tenant (server/tenants.py),
kind (greedy, sampled), rank, and the model's log-probability. All guesses of an outcome are counted at
once; then full cells are halved. Cells with few observations follow the model.

Knows tables; does not know models.
"""

from dataclasses import dataclass

from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.select import text_slot
from ssd.draft.tree.tables import BINS, RANKS, Constants, Moves, OutcomeTable, Shape, Tables


@dataclass(frozen=True, slots=True)
class _Path:
    """How much of each outcome [S] is in its tree."""

    is_ready: Array  # there is an outcome, and the text is read up to its root
    is_hit: Array  # all of the outcome is in its tree
    grown: Array  # processed nodes along its tokens
    slots: Array  # [S, K] the slots of these nodes
    last: Array  # the last of them, or the root's family


def apply_outcomes(
    xp: Arrays,
    shape: Shape,
    known: Constants,
    tables: Tables,
    outcomes: OutcomeTable,
    path_buffer: Array,
    sequences: Array | None = None,
) -> Moves:
    """`sequences`: the sequence of each row of the tables, since tree slots are found by it. None: row i is
    sequence i."""
    if sequences is None:
        sequences = known.sequences[: len(outcomes.count)]
    path = _path(xp, shape, known, tables, outcomes, path_buffer)
    _count_guesses(xp, shape, known, tables, outcomes, path)
    moves = _moves(xp, shape, known, tables, path, sequences)
    _set_root_ids(xp, shape, known, tables, outcomes, path)
    _drop_lost(xp, shape, known, tables, outcomes, path)
    _append_tokens(xp, shape, known, tables, outcomes, path)
    return moves


def _path(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, outcomes: OutcomeTable, path_buffer: Array
) -> _Path:
    here = known.sequences[: len(outcomes.count), None]
    is_ready = (outcomes.count > 0) & (tables.num_computed == tables.length)
    place = tables.position - tables.length[:, None]
    is_inside = (place >= 0) & (place < outcomes.count[:, None]) & tables.is_used & is_ready[:, None]
    place = xp.where(is_inside, place, known.zero)
    is_right = is_inside & (outcomes.tokens[here, place] == tables.token)
    rights = (is_right * known.bits[:, None, :]).sum(2)
    astray = tables.ancestors & ~rights[:, :, None]
    on_path = is_right & ((astray[0] | astray[1]) == 0)
    grown = on_path.sum(1)
    slots = path_buffer[: len(here)]
    slots[here, xp.where(on_path, place, known.nowhere)] = known.families
    slots = slots[:, : shape.outcome]
    last = slots[here[:, 0], xp.at_least(grown - 1, 0)]
    is_hit = is_ready & (grown == outcomes.count)
    return _Path(is_ready, is_hit, grown, slots, xp.where(grown > 0, last, known.root))


def _count_guesses(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, outcomes: OutcomeTable, path: _Path
) -> None:
    """Calibration: compares the children of the root and of each node on the path with the decided token."""
    here = known.sequences[: len(outcomes.count), None]
    count, grown = outcomes.count[:, None], path.grown[:, None]
    is_judged = (known.places < count) & (known.places <= grown) & path.is_ready[:, None]
    is_judged = is_judged & tables.is_used[:, shape.root :]
    family = xp.joined((known.roots[: len(here)], path.slots[:, :-1]), 1)
    family = xp.where(is_judged, family, known.root)
    tokens = tables.child_token[here, family]
    came = tokens == outcomes.tokens[:, :, None]
    observed = is_judged[:, :, None] & (tokens >= 0), came
    learn(xp, known, tables.counts, tables.child_raw[here, family], tables.calibration, observed)


def _moves(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, path: _Path, sequences: Array
) -> Moves:
    """Moves keys of accepted nodes from tree slots into the sequence's KV blocks."""
    here = known.sequences[: len(path.grown), None]
    moves = known.places < path.grown[:, None]
    targets = text_slot(xp, shape, tables, here, tables.length[:, None] + known.places)
    sources = shape.tree_start(sequences[:, None]) + path.slots
    return Moves(xp.where(moves, sources, known.scratch), xp.where(moves, targets, known.scratch))


def _set_root_ids(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, outcomes: OutcomeTable, path: _Path
) -> None:
    """The new root is a processed node (hit), a known child (late), or a new node (miss)."""
    is_hit = path.is_hit
    here = known.sequences[: len(outcomes.count)]
    following = outcomes.tokens[here, xp.at_most(path.grown, shape.outcome - 1)]
    alike = (tables.child_token[here, path.last] == following[:, None]) & tables.is_used[here, path.last][
        :, None
    ]
    is_late = path.is_ready & (path.grown + 1 == outcomes.count) & alike.any(1)
    is_miss = (outcomes.count > 0) & ~is_hit & ~is_late
    late_id = tables.first_id[here, path.last] + (alike * known.ranks).sum(1)
    name = xp.where(is_hit, tables.node_id[here, path.last], tables.root_id)
    name = xp.where(is_late, late_id, name)
    next_id = tables.next_id
    tables.root_id[:] = xp.where(is_miss, next_id, name)
    next_id += is_miss


def _drop_lost(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, outcomes: OutcomeTable, path: _Path
) -> None:
    """Keeps the nodes below the new root in their slots. Values are relative to the new root."""
    is_hit = path.is_hit
    here = known.sequences[: len(outcomes.count)]
    is_moved = (outcomes.count > 0)[:, None]
    mine = tables.ancestors & known.bits[:, path.last][:, :, None]
    is_below = ((mine[0] | mine[1]) != 0) & tables.is_used
    kept = xp.where(is_moved, is_below & is_hit[:, None], tables.is_used)
    alive = (kept * known.bits[:, None, :]).sum(2)
    ancestors, value, child_value = tables.ancestors, tables.value, tables.child_value
    ancestors &= xp.where(is_moved, alive[:, :, None], known.minus)
    _move_family(shape, tables, here, xp.where(is_hit, path.last, known.root))
    tables.is_used[:] = kept
    tables.is_used[:, shape.root] = xp.where(is_moved[:, 0], is_hit, kept[:, shape.root])
    base = xp.where(is_hit, tables.value[here, path.last], known.nought)
    value -= base[:, None]
    child_value -= base[:, None, None]


def _move_family(shape: Shape, tables: Tables, here: Array, source: Array) -> None:
    """The new root's children become the root's family. Its own slot is free."""
    root = shape.root
    tables.first_id[:, root] = tables.first_id[here, source]
    tables.child_token[:, root] = tables.child_token[here, source]
    tables.is_open[:, root] = tables.is_open[here, source]
    tables.child_raw[:, root] = tables.child_raw[here, source]
    tables.child_value[:, root] = tables.child_value[here, source]
    tables.parted[:, :, root] = tables.parted[:, here, source]
    tables.parted_rank[:, root] = tables.parted_rank[here, source]


def _append_tokens(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, outcomes: OutcomeTable, path: _Path
) -> None:
    """Appends the outcome to the text. Accepted nodes count as read."""
    here = known.sequences[: len(outcomes.count), None]
    spots = (tables.length[:, None] + known.places) % shape.ring
    is_token = known.places < outcomes.count[:, None]
    tables.ring[here, spots] = xp.where(is_token, outcomes.tokens, tables.ring[here, spots])
    length, num_computed = tables.length, tables.num_computed
    num_computed += path.grown
    length += outcomes.count
    depth = xp.at_most(tables.max_depth, tables.max_length - 2 - length)
    tables.last_position[:] = length - 1 + depth
    tables.position[:, shape.root] = length - 1


TRUST = 6.0
"""The model's own probability counts as this many observations."""
MEMORY = 400.0
"""A cell with more observations than this is halved, so that old ones fade."""
LEAST = 1e-4
"""Smallest calibrated probability: the logarithm stays finite."""


def calibrated(xp: Arrays, known: Constants, counts: Array, raws: Array, part: Array) -> Array:
    """Calibrated log-probabilities [W, C] of rows' children, from the model's (`raws`).

    `part` [W]: the part of the counts that a row uses (`Tables.calibration`).
    """
    raw = xp.exact(raws)
    cells = _cells(xp, known, raw, part[:, None])
    rates = (counts[1][cells] + TRUST * xp.exp(raw)) / (counts[0][cells] + TRUST)
    return xp.real(xp.at_most(xp.log(xp.at_least(rates, LEAST)), 0.0))


def learn(
    xp: Arrays, known: Constants, counts: Array, raws: Array, part: Array, observed: tuple[Array, Array]
) -> None:
    """Counts guesses [S, K, C]. `observed`: which guesses were decided, and which were right."""
    is_judged, came = observed
    cells = _cells(xp, known, xp.exact(raws), part[:, None, None]).reshape(-1)
    xp.add_at(counts[0], cells, xp.exact(is_judged).reshape(-1))
    xp.add_at(counts[1], cells, xp.exact(is_judged & came).reshape(-1))
    counts *= xp.where(counts[:1] > MEMORY, known.half, known.one)


def _cells(xp: Arrays, known: Constants, raw: Array, part: Array) -> Array:
    return part * (RANKS * BINS) + known.first_cells + xp.searchsorted(known.edges, raw)
