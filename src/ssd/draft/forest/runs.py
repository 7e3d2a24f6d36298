"""Rows behind the first of a tree that continue what the text says: runs.

Who has which run is the host's word: for each row of a run the row it begins behind, how far in it lies, and
its token. As far as the model's own children confirm it the tree is that much deeper; the rest is forgotten.
Rows of runs lie behind all others, those of one run together. Knows tables, not texts.
"""

from dataclasses import dataclass, fields, replace

from ssd.draft.forest.arrays import Array, Arrays
from ssd.draft.forest.attach import Families, Ids
from ssd.draft.forest.constants import Constants
from ssd.draft.forest.tables import Rows, Shape, Tables


@dataclass(frozen=True, slots=True)
class Runs:
    """Of each row of a run [Q]; padding has no owner: −1."""

    owner: Array
    """The row that it begins behind."""
    place: Array
    """How many of the run come before it."""
    token: Array

    @classmethod
    def of(cls, xp: Arrays, count: int) -> "Runs":
        return cls(xp.integers(count, fill=-1), xp.integers(count), xp.integers(count))


def run_rows(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, rows: Rows, runs: Runs, free: Array
) -> Rows:
    """The rows of the runs. Which nodes they are is known when their logits are."""
    is_run = runs.owner >= 0
    owner = xp.at_least(runs.owner, 0)
    sequence = xp.where(is_run, rows.sequence[owner], known.zero)
    # Behind the slots of the tree's other rows; a root's are none.
    others = rows_until(xp, rows, owner) - rows.start[owner]
    order = runs.place + xp.where(rows.is_read[owner], known.zero, others)
    slot = xp.where(is_run, free[sequence, xp.at_most(order, free.shape[1] - 1)], known.root)
    is_earlier = (owner[:, None] == owner) & (runs.place < runs.place[:, None]) & is_run
    seen = rows.ancestors[:, owner] | known.bits[:, rows.slot[owner]]
    seen = seen | (is_earlier * known.bits[:, slot][:, None, :]).sum(2)
    tree_slot = shape.tree_start(sequence) + xp.where(is_run, slot, known.zero)
    nothing = runs.place * 0
    return Rows(
        sequence=sequence,
        home=rows.home[owner],
        token=xp.where(is_run, runs.token, known.zero),
        position=xp.where(is_run, rows.position[owner] + 1 + runs.place, known.zero),
        trunk=tables.length[sequence],
        ancestors=xp.where(is_run, seen, known.zero),
        target=tree_slot,
        slot=slot,
        family=nothing,
        rank=nothing,
        node_id=nothing,
        value=xp.where(is_run, rows.value[owner], known.nought),
        start=known.rows[: len(owner)] + len(rows.sequence) - runs.place,
        key=rows.key[owner],
        is_read=is_run & ~is_run,
        attaches=is_run,
    )


def rows_until(xp: Arrays, rows: Rows, owner: Array) -> Array:
    """How many rows there are to the end of those of a row's sequence; those of runs do not count."""
    return xp.searchsorted(rows.home, rows.home[owner] + 1)


def joined_rows(xp: Arrays, rows: Rows, more: Rows) -> Rows:
    columns = {each.name: (getattr(rows, each.name), getattr(more, each.name)) for each in fields(Rows)}
    return Rows(**{name: xp.joined(pair, -1) for name, pair in columns.items()})


def confirmed(xp: Arrays, known: Constants, rows: Rows, found: Families, ends: Array, runs: Runs) -> Rows:
    """The rows, with those of runs that the model confirms as the nodes that they are; others attach nothing.

    `ends` [W, C]: children behind which nothing is grown.
    """
    count = len(runs.owner)
    own = len(rows.sequence) - count
    is_first = runs.place == 0
    before = xp.where(is_first, xp.at_least(runs.owner, 0), known.rows[:count] + (own - 1))
    alike = (found.tokens[before] == runs.token[:, None]) & found.exists[before] & ~ends[before]
    is_said = alike.any(1) & (runs.owner >= 0)
    rank = (alike * known.ranks).sum(1)
    gain = xp.where(alike, xp.exact(found.logprobs[before]), known.nought).sum(1)
    # A run holds as long as nothing in it has lapsed: sums over all runs, less what came before this one.
    first = known.rows[:count] - runs.place
    lapses, gains = (~is_said).cumsum(0), gain.cumsum(0)
    is_held = lapses - lapses[first] + ~is_said[first] == 0
    value = rows.value[own:] + (gains - gains[first] + gain[first])
    return replace(
        rows,
        attaches=xp.joined((rows.attaches[:own], is_held), 0),
        family=xp.joined((rows.family[:own], rows.slot[before]), 0),
        rank=xp.joined((rows.rank[:own], rank), 0),
        value=xp.joined((rows.value[:own], value), 0),
    )


def numbered_runs(xp: Arrays, tables: Tables, rows: Rows, found: Families, runs: Runs) -> Ids:
    """As `attach.numbered`, with the children of runs behind those of their tree's other rows."""
    count = len(runs.owner)
    own = len(rows.sequence) - count
    number = found.exists.sum(1) * rows.attaches
    until = number.cumsum(0)
    before = until - number
    first = tables.next_id[rows.sequence] + before - before[rows.start]
    owner = xp.at_least(runs.owner, 0)
    end = rows_until(xp, rows.part(0, own), owner)
    others = until[end - 1] - before[rows.start[owner]]
    first = xp.joined((first[:own], first[own:] + others), 0)
    previous = xp.where(runs.place == 0, owner, xp.at_least(rows.start[own:] + runs.place - 1, 0))
    named = first[previous] + rows.rank[own:]
    return Ids(xp.joined((rows.node_id[:own], named), 0), number, first)
