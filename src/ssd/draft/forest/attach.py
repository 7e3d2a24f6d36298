"""What the logits of a step's rows become: families of children in the trees, and what the engine is told.

A row's node gets its slot, its children join the tree, and it is no longer to be chosen. Rows that attach
nothing write to scratch. `fresh` is all that has to leave the device. Knows tables, not logits.
"""

from dataclasses import dataclass

from ssd.draft.forest.arrays import Array, Arrays
from ssd.draft.forest.calibration import calibrated
from ssd.draft.forest.constants import Constants
from ssd.draft.forest.tables import Rows, Shape, Tables

HEAD = 5
"""Columns of a row of `fresh` before its tokens: sequence, number of children, parent, first id, root."""


@dataclass(frozen=True, slots=True)
class Families:
    """Of each row [W, C]: its children, most likely first; those that exist lie before the others."""

    tokens: Array
    raws: Array
    logprobs: Array
    exists: Array


@dataclass(frozen=True, slots=True)
class Ids:
    """Of each row: its node's, how many children it has, and the first one's."""

    node: Array
    number: Array
    first: Array


def fresh_width(shape: Shape) -> int:
    return HEAD + 2 * shape.children


def families(xp: Arrays, known: Constants, tables: Tables, rows: Rows, told: tuple[Array, Array]) -> Families:
    """From tokens and what the model said of them: −inf or NaN where there is no child."""
    tokens, raws = told
    logprobs = calibrated(xp, known, tables.counts, raws, tables.calibration[rows.sequence])
    exists = raws > known.never
    is_meant = exists & (tokens < tables.vocab[rows.sequence][:, None])
    found = Families(tokens, raws, logprobs, is_meant)
    if not xp.is_fixed and (is_meant == exists).all():
        return found
    return _closed_up(xp, known, found)


def _closed_up(xp: Arrays, known: Constants, found: Families) -> Families:
    """What one side of the line does not know leaves no gap: ids are numbered on."""
    count = found.tokens.shape[1]
    order = xp.smallest(xp.where(found.exists, known.ranks, known.ranks + count), count) % count
    places = known.rows[: len(order), None], order
    return Families(*(getattr(found, name)[places] for name in ("tokens", "raws", "logprobs", "exists")))


def barren(tables: Tables, rows: Rows, found: Families) -> Array:
    """Children [W, C] that end the text: nothing is grown behind them."""
    return (found.tokens[:, :, None] == tables.ends[rows.sequence][:, None, :]).any(2)


def attach_rows(
    xp: Arrays, known: Constants, tables: Tables, rows: Rows, found: Families, is_barren: Array, ids: Ids
) -> Array:
    """Writes the families into the trees; returns `fresh` [W, …] as int32."""
    sequence, attaches = rows.sequence, rows.attaches
    tokens = xp.where(found.exists, found.tokens, known.minus)
    home = xp.where(attaches, sequence, known.zero)
    _write_slots(xp, known, tables, rows, home, ids)
    tables.child_token[home, rows.slot] = tokens
    tables.is_open[home, rows.slot] = found.exists & ~is_barren
    tables.child_raw[home, rows.slot] = found.raws
    tables.child_value[home, rows.slot] = rows.value[:, None] + found.logprobs
    # After its family is written: a node of a run is a child of another row of this step.
    gone = xp.where(attaches & ~rows.is_read, sequence, known.zero)
    tables.is_open[gone, rows.family, rows.rank] = known.no_flags[: len(gone)]
    read = xp.where(attaches & rows.is_read, sequence, known.zero)
    tables.is_new[read] = known.no_flags[: len(gone)]
    xp.add_at(tables.next_id, home, ids.number)
    xp.add_at(tables.num_read, sequence, rows.is_read)
    head = (sequence, ids.number, ids.node, ids.first, tables.root_id[sequence])
    heads = xp.word(xp.joined([each[:, None] for each in head], 1))
    return xp.joined((heads, xp.word(tokens), xp.bits(found.logprobs)), 1)


def numbered(xp: Arrays, tables: Tables, rows: Rows, found: Families) -> Ids:
    """Children are numbered on within their sequence, in the order of the rows."""
    number = found.exists.sum(1) * rows.attaches
    before = number.cumsum(0) - number
    first = tables.next_id[rows.sequence] + before - before[rows.start]
    return Ids(rows.node_id, number, first)


def _write_slots(xp: Arrays, known: Constants, tables: Tables, rows: Rows, home: Array, ids: Ids) -> None:
    place = home, rows.slot
    tables.is_used[place] = known.all_flags[: len(home)]
    tables.position[place] = rows.position
    tables.token[place] = rows.token
    tables.node_id[place] = ids.node
    tables.first_id[place] = ids.first
    tables.ancestors[:, home, rows.slot] = rows.ancestors
    tables.value[place] = rows.value


def write_partings(xp: Arrays, known: Constants, tables: Tables, rows: Rows) -> None:
    """Where the way to each row last took another token than the likeliest, for policies that ask."""
    home = xp.where(rows.attaches, rows.sequence, known.zero)
    before = xp.where(rows.is_read, known.minus, tables.parted[:, rows.sequence, rows.family])
    ranks = tables.parted_rank[rows.sequence, rows.family]
    parts = rows.rank > 0
    tables.parted[0, home, rows.slot] = xp.where(parts, rows.position, before[0])
    tables.parted[1, home, rows.slot] = xp.where(parts, before[0], before[1])
    tables.parted_rank[home, rows.slot] = xp.where(parts, rows.rank, ranks)
