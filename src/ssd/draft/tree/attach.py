"""Attaches chosen children to the trees, and collects them in `fresh` for the targets.

A row's node gets its slot, its children join the tree, and it cannot be selected again. Rows that attach
nothing write to scratch. `fresh` is all that has to be copied to the host.

A run is a guess by n-gram (ngram.py): rows below the first row of a tree, each a child of the last. The host
decides them: for each row of a run, the row that it starts from, its place in the run, and its token. The
part of a run that the model's children confirm becomes nodes; the rest is dropped. Rows of runs come after
all others, those of one run together. Knows tables; does not know logits or texts.
"""

from dataclasses import dataclass, fields, replace

from ssd.draft.tree.apply import calibrated
from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.tables import Constants, Shape, Tables, TreeRows

HEAD = 5
"""Columns of `fresh` before the tokens: sequence, number of children, parent's id, first child's id, root's
id. After the tokens come the log-probabilities, as bits."""


@dataclass(frozen=True, slots=True)
class Families:
    """The children of each row [W, C], most likely first. Existing children come before missing ones."""

    tokens: Array
    raws: Array  # log-probabilities, not calibrated
    logprobs: Array  # calibrated
    exists: Array


@dataclass(frozen=True, slots=True)
class Ids:
    """For each row: its node's id, its number of children, and the first child's id."""

    node: Array
    number: Array
    first: Array


def fresh_width(shape: Shape) -> int:
    return HEAD + 2 * shape.children


def families(
    xp: Arrays, known: Constants, tables: Tables, rows: TreeRows, chosen: ChosenChildren
) -> Families:
    """Families from chosen children. A log-probability of −inf or NaN means that there is no child."""
    tokens, raws = chosen
    logprobs = calibrated(xp, known, tables.counts, raws, tables.calibration[rows.sequence])
    exists = raws > known.never
    is_meant = exists & (tokens < tables.vocab[rows.sequence][:, None])
    found = Families(tokens, raws, logprobs, is_meant)
    if not xp.is_fixed and (is_meant == exists).all():
        return found
    return _compacted(xp, known, found)


def _compacted(xp: Arrays, known: Constants, found: Families) -> Families:
    """Moves existing children to the front, because a family's ids are consecutive."""
    count = found.tokens.shape[1]
    order = xp.smallest(xp.where(found.exists, known.ranks, known.ranks + count), count) % count
    places = known.rows[: len(order), None], order
    return Families(*(getattr(found, name)[places] for name in ("tokens", "raws", "logprobs", "exists")))


def barren(tables: Tables, rows: TreeRows, found: Families) -> Array:
    """Which children [W, C] are end tokens: those are never processed."""
    return (found.tokens[:, :, None] == tables.ends[rows.sequence][:, None, :]).any(2)


def attach_rows(
    xp: Arrays, known: Constants, tables: Tables, rows: TreeRows, found: Families, is_barren: Array, ids: Ids
) -> Array:
    """Writes the families to the trees. Returns `fresh` [W, …] as int32."""
    sequence, attaches = rows.sequence, rows.attaches
    tokens = xp.where(found.exists, found.tokens, known.minus)
    home = xp.where(attaches, sequence, known.zero)
    _write_slots(xp, known, tables, rows, home, ids)
    tables.child_token[home, rows.slot] = tokens
    tables.is_open[home, rows.slot] = found.exists & ~is_barren
    tables.child_raw[home, rows.slot] = found.raws
    tables.child_value[home, rows.slot] = rows.value[:, None] + found.logprobs
    # Last, because a run's node is a child of another row of this step, whose family was written above.
    gone = xp.where(attaches & ~rows.is_read, sequence, known.zero)
    tables.is_open[gone, rows.family, rows.rank] = known.no_flags[: len(gone)]
    read = xp.where(attaches & rows.is_read, sequence, known.zero)
    tables.is_new[read] = known.no_flags[: len(gone)]
    xp.add_at(tables.next_id, home, ids.number)
    xp.add_at(tables.num_computed, sequence, rows.is_read)
    head = (sequence, ids.number, ids.node, ids.first, tables.root_id[sequence])
    heads = xp.word(xp.joined([each[:, None] for each in head], 1))
    return xp.joined((heads, xp.word(tokens), xp.bits(found.logprobs)), 1)


def numbered(xp: Arrays, tables: Tables, rows: TreeRows, found: Families) -> Ids:
    """Numbers children consecutively within their sequence, in the order of the rows."""
    number = found.exists.sum(1) * rows.attaches
    before = number.cumsum(0) - number
    first = tables.next_id[rows.sequence] + before - before[rows.start]
    return Ids(rows.node_id, number, first)


def _write_slots(xp: Arrays, known: Constants, tables: Tables, rows: TreeRows, home: Array, ids: Ids) -> None:
    place = home, rows.slot
    tables.is_used[place] = known.all_flags[: len(home)]
    tables.position[place] = rows.position
    tables.token[place] = rows.token
    tables.node_id[place] = ids.node
    tables.first_id[place] = ids.first
    tables.ancestors[:, home, rows.slot] = rows.ancestors
    tables.value[place] = rows.value


def write_partings(xp: Arrays, known: Constants, tables: Tables, rows: TreeRows) -> None:
    """Notes where each path last left the most likely child, for fan-out policies."""
    home = xp.where(rows.attaches, rows.sequence, known.zero)
    before = xp.where(rows.is_read, known.minus, tables.parted[:, rows.sequence, rows.family])
    ranks = tables.parted_rank[rows.sequence, rows.family]
    parts = rows.rank > 0
    tables.parted[0, home, rows.slot] = xp.where(parts, rows.position, before[0])
    tables.parted[1, home, rows.slot] = xp.where(parts, before[0], before[1])
    tables.parted_rank[home, rows.slot] = xp.where(parts, rows.rank, ranks)


@dataclass(frozen=True, slots=True)
class RunRows:
    """The rows of runs [Q]. Padding has the owner −1."""

    owner: Array
    """The row that the run starts from."""
    place: Array
    """Place in the run, from 0."""
    token: Array

    @classmethod
    def of(cls, xp: Arrays, count: int) -> "RunRows":
        return cls(xp.integers(count, fill=-1), xp.integers(count), xp.integers(count))


def run_rows(
    xp: Arrays, shape: Shape, known: Constants, tables: Tables, rows: TreeRows, runs: RunRows, free: Array
) -> TreeRows:
    """The rows of the runs. Their node ids are known only after the forward."""
    is_run = runs.owner >= 0
    owner = xp.at_least(runs.owner, 0)
    sequence = xp.where(is_run, rows.sequence[owner], known.zero)
    # A run takes the free slots after those of its tree's other rows; below a root there are no others.
    others = rows_until(xp, rows, owner) - rows.start[owner]
    order = runs.place + xp.where(rows.is_read[owner], known.zero, others)
    slot = xp.where(is_run, free[sequence, xp.at_most(order, free.shape[1] - 1)], known.root)
    is_earlier = (owner[:, None] == owner) & (runs.place < runs.place[:, None]) & is_run
    seen = rows.ancestors[:, owner] | known.bits[:, rows.slot[owner]]
    seen = seen | (is_earlier * known.bits[:, slot][:, None, :]).sum(2)
    tree_slot = shape.tree_start(sequence) + xp.where(is_run, slot, known.zero)
    nothing = runs.place * 0
    return TreeRows(
        sequence=sequence,
        home=rows.home[owner],
        token=xp.where(is_run, runs.token, known.zero),
        position=xp.where(is_run, rows.position[owner] + 1 + runs.place, known.zero),
        context_len=tables.length[sequence],
        ancestors=xp.where(is_run, seen, known.zero),
        target=tree_slot,
        slot=slot,
        family=nothing,
        rank=nothing,
        node_id=nothing,
        value=xp.where(is_run, rows.value[owner], known.nought),
        start=known.rows[: len(owner)] + len(rows.sequence) - runs.place,
        key=rows.key[owner],
        is_read=is_run & ~is_run,  # False for all
        attaches=is_run,
    )


def rows_until(xp: Arrays, rows: TreeRows, owner: Array) -> Array:
    """For each owner: the end of its sequence's rows, not counting rows of runs."""
    return xp.searchsorted(rows.home, rows.home[owner] + 1)


def joined_rows(xp: Arrays, rows: TreeRows, more: TreeRows) -> TreeRows:
    columns = {each.name: (getattr(rows, each.name), getattr(more, each.name)) for each in fields(TreeRows)}
    return TreeRows(**{name: xp.joined(pair, -1) for name, pair in columns.items()})


def confirmed(
    xp: Arrays, known: Constants, rows: TreeRows, found: Families, ends: Array, runs: RunRows
) -> TreeRows:
    """The same rows: confirmed rows of runs become nodes, the other rows of runs attach nothing.

    `ends` [W, C]: children that end the text.
    """
    count = len(runs.owner)
    own = len(rows.sequence) - count
    is_first = runs.place == 0
    before = xp.where(is_first, xp.at_least(runs.owner, 0), known.rows[:count] + (own - 1))
    alike = (found.tokens[before] == runs.token[:, None]) & found.exists[before] & ~ends[before]
    is_child = alike.any(1) & (runs.owner >= 0)
    rank = (alike * known.ranks).sum(1)
    gain = xp.where(alike, xp.exact(found.logprobs[before]), known.nought).sum(1)
    # A run is confirmed up to its first mismatch. Cumulative sums over all runs, minus those before this run.
    first = known.rows[:count] - runs.place
    lapses, gains = (~is_child).cumsum(0), gain.cumsum(0)
    is_held = lapses - lapses[first] + ~is_child[first] == 0
    value = rows.value[own:] + (gains - gains[first] + gain[first])
    return replace(
        rows,
        attaches=xp.joined((rows.attaches[:own], is_held), 0),
        family=xp.joined((rows.family[:own], rows.slot[before]), 0),
        rank=xp.joined((rows.rank[:own], rank), 0),
        value=xp.joined((rows.value[:own], value), 0),
    )


def numbered_runs(xp: Arrays, tables: Tables, rows: TreeRows, found: Families, runs: RunRows) -> Ids:
    """Like `numbered`. Children of a run are numbered after those of its tree's other rows."""
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
