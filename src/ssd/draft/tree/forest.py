"""All trees and their steps: `select` rows, `attach` the children that a forward found, `apply` outcomes.

On tensors each step is a fixed list of operations over storage that stays in place. Its results are in static
buffers (`rows`, `fresh`, `moves`), and no value is read on the host. Forests of different numbers of rows may
share their tables: a step then takes the one that holds its rows. On numpy arrays the shapes follow the work
that there is.

`attach` gives a row's node its slot and adds its children to the tree; the node cannot be selected again.
Rows that attach nothing write to scratch. `fresh` has the children for the targets: all that has to be copied
to the host.

A run is a chain of tokens guessed by n-gram (ngram.py), with a row for each token. It starts below the root
or below the first row of its tree. `runs` has, for each row of a run, the row that the run starts from
(`owner`), the place in the run (`place`), and the token. The host writes it (server/host_steps.py); on a GPU
`RunFinder` does (device_runs.py). The part of a run that the model's children confirm becomes nodes; the rest
is dropped. Rows of runs come after all others, those of one run together. Does not know models, logits or
whole texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ssd.config import GrowthPolicyName
from ssd.draft.tree.apply import apply_outcomes, calibrated
from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.children import ChosenChildren
from ssd.draft.tree.select import GrowthPolicy, free_slots, growth_policy, select_rows
from ssd.draft.tree.tables import (
    WORD,
    WORDS,
    Constants,
    Moves,
    OutcomeTable,
    Shape,
    Tables,
    TenantUsage,
    TreeRows,
)

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
    is_in_vocab = exists & (tokens < tables.vocab[rows.sequence][:, None])
    found = Families(tokens, raws, logprobs, is_in_vocab)
    if not xp.is_fixed and (is_in_vocab == exists).all():
        return found
    return _compacted(xp, known, found)


def _compacted(xp: Arrays, known: Constants, found: Families) -> Families:
    """Moves existing children to the front, because a family's ids are consecutive."""
    count = found.tokens.shape[1]
    order = xp.smallest(xp.where(found.exists, known.ranks, known.ranks + count), count) % count
    places = known.rows[: len(order), None], order
    return Families(*(getattr(found, name)[places] for name in ("tokens", "raws", "logprobs", "exists")))


def ends_text(tables: Tables, rows: TreeRows, found: Families) -> Array:
    """Which children [W, C] are end tokens: those are never processed."""
    return (found.tokens[:, :, None] == tables.ends[rows.sequence][:, None, :]).any(2)


def attach_rows(
    xp: Arrays, known: Constants, tables: Tables, rows: TreeRows, found: Families, is_end: Array, ids: Ids
) -> Array:
    """Writes the families to the trees. Returns `fresh` [W, …] as int32."""
    sequence, attaches = rows.sequence, rows.attaches
    tokens = xp.where(found.exists, found.tokens, known.minus)
    home = xp.where(attaches, sequence, known.zero)
    _write_slots(xp, known, tables, rows, home, ids)
    tables.child_token[home, rows.slot] = tokens
    tables.is_open[home, rows.slot] = found.exists & ~is_end
    tables.child_raw[home, rows.slot] = found.raws
    tables.child_value[home, rows.slot] = rows.value[:, None] + found.logprobs
    # Close the nodes of all rows last: the node of a run's row is in a family that was written above.
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
class TokenRun:
    """Tokens that a step processes at once, one after the other, below one of its rows."""

    owner: int
    """The row whose node the run starts from."""
    tokens: Sequence[int]


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


_FLAGS = ("is_read", "attaches")
_COPY_ABOVE = 64
"""With more sequences than this, and outcomes for fewer than half of them, outcomes are applied to copies of
those sequences' rows: that reads less memory than the whole tables."""


@dataclass(frozen=True, slots=True)
class ForestTables:
    """The trees, and what the host says of them: forests that share it grow the same trees."""

    trees: Tables
    outcomes: OutcomeTable
    usage: TenantUsage

    @classmethod
    def of(cls, xp: Arrays, shape: Shape) -> "ForestTables":
        return cls(Tables.of(xp, shape), OutcomeTable.of(xp, shape), TenantUsage.of(xp, shape))


class Forest:
    def __init__(
        self,
        xp: Arrays,
        shape: Shape,
        policy: GrowthPolicyName | GrowthPolicy = "value",
        shared: ForestTables | None = None,
    ) -> None:
        """`shared`: the tables of another forest whose shape differs only in `rows`."""
        self.shape, self.xp = shape, xp
        self.shared = shared or ForestTables.of(xp, shape)
        self.tables, self.outcomes, self.usage = self.shared.trees, self.shared.outcomes, self.shared.usage
        self.is_shared = xp.is_fixed
        """Whether `select` shares rows between tenants, by `usage`. Always true where shapes are fixed."""
        self._known = Constants.of(xp, shape)
        self._policy = growth_policy(policy, xp, shape) if isinstance(policy, str) else policy
        self._view, self._num_used = self.tables, shape.sequences
        all_rows = shape.num_rows + shape.lookup
        columns = {each.name: xp.integers(all_rows) for each in fields(TreeRows)}
        columns |= {name: xp.flags(all_rows) for name in _FLAGS}
        columns |= {"value": xp.exacts(all_rows), "ancestors": xp.integers(WORDS, all_rows)}
        self.rows = TreeRows(**columns)
        """The rows that were selected last."""
        self.runs = RunRows.of(xp, shape.lookup if xp.is_fixed else 0)
        """Runs of the next step (`load_runs`)."""
        self.fresh = xp.words(all_rows, fresh_width(shape))
        """The children that were attached last: see `attach_rows`."""
        sequences = shape.sequences + 1
        self.moves = Moves(xp.integers(sequences, shape.outcome), xp.integers(sequences, shape.outcome))
        self._free = xp.integers(sequences, min(shape.slots, shape.width + shape.lookup))
        self._path_buffer = xp.integers(sequences, shape.outcome + 1)

    def narrow(self, count: int) -> None:
        """Restricts steps to the first `count` sequences. The caller ensures that no other is in use.

        Fixed shapes stay as they are.
        """
        if count != self._num_used and not self.xp.is_fixed:
            self._view, self._num_used = self.tables.leading(count), count

    def select(self) -> None:
        free = free_slots(self.xp, self.shape, self._known, self._view)
        if self.xp.is_fixed:
            self._free[: len(free)] = free
        else:
            self._free = free
        usage = self.usage if self.is_shared else None
        found = select_rows(self.xp, self.shape, self._known, self._view, self._policy, self._free, usage)
        self._keep(found, 0)

    def load_runs(self, runs: Sequence[TokenRun]) -> None:
        """Writes the runs of the next step, padded where shapes are fixed."""
        columns = np.array(
            [(run.owner, place, token) for run in runs for place, token in enumerate(run.tokens)], np.int64
        ).reshape(-1, 3)
        if not self.xp.is_fixed:
            self.runs = RunRows(*columns.T)
            return
        for table, values, empty in zip(
            (self.runs.owner, self.runs.place, self.runs.token), columns.T, (-1, 0, 0), strict=True
        ):
            full = np.full(self.shape.lookup, empty, np.int64)
            full[: len(values)] = values
            self.xp.load(table, full)

    def lay_runs(self) -> None:
        """Adds the rows of `runs` after those that were selected."""
        own = self.shape.num_rows if self.xp.is_fixed else len(self.rows.sequence)
        rows = self.rows.part(0, own)
        found = run_rows(self.xp, self.shape, self._known, self._view, rows, self.runs, self._free)
        self._keep(found, own)

    def attach(self, chosen: ChosenChildren) -> None:
        """Adds children to the nodes of all rows that attach."""
        xp, known, tables, rows, runs = self.xp, self._known, self._view, self.rows, self.runs
        found = families(xp, known, tables, rows, chosen)
        is_end = ends_text(tables, rows, found)
        has_runs = len(runs.owner) > 0
        if has_runs:
            rows = confirmed(xp, known, rows, found, is_end, runs)
            ids = numbered_runs(xp, tables, rows, found, runs)
        else:
            ids = numbered(xp, tables, rows, found)
        fresh = attach_rows(xp, known, tables, rows, found, is_end, ids)
        if self._policy.keeps_partings:
            self._write_partings(rows)
        if xp.is_fixed:
            self.fresh[:] = fresh
        else:
            self.fresh = fresh

    def _keep(self, found: TreeRows, start: int) -> None:
        if not self.xp.is_fixed:
            self.rows = joined_rows(self.xp, self.rows, found) if start else found
            return
        for each in fields(TreeRows):
            column = getattr(found, each.name)
            getattr(self.rows, each.name)[..., start : start + column.shape[-1]] = column

    def _write_partings(self, rows: TreeRows) -> None:
        """Rows of a run are written one after the other: each is the parent of the next."""
        own, end = len(rows.sequence) - len(self.runs.owner), len(rows.sequence)
        for part in (rows.part(0, own), *(rows.part(row, row + 1) for row in range(own, end))):
            write_partings(self.xp, self._known, self._view, part)

    def apply(self) -> None:
        """Applies the outcomes, and clears them."""
        end = self._num_used + 1
        outcomes = OutcomeTable(self.outcomes.count[:end], self.outcomes.tokens[:end])
        if self.xp.is_fixed:
            moves = apply_outcomes(self.xp, self.shape, self._known, self._view, outcomes, self._path_buffer)
            self.moves.sources[:end], self.moves.targets[:end] = moves.sources, moves.targets
        else:
            self.moves = self._apply_some(outcomes)
        count: Array = self.outcomes.count
        count[:] = self._known.zero

    def _apply_some(self, outcomes: OutcomeTable) -> Moves:
        """Only on numpy arrays. If few sequences have outcomes, copying their rows is faster than processing
        all rows."""
        tables, sequences = self._view, outcomes.count.nonzero()[0]
        uses_copies = _COPY_ABOVE < len(outcomes.count) > 2 * len(sequences)
        if uses_copies:
            tables = tables.copy_of(sequences)
            outcomes = OutcomeTable(outcomes.count[sequences], outcomes.tokens[sequences])
        moves = apply_outcomes(
            self.xp,
            self.shape,
            self._known,
            tables,
            outcomes,
            self._path_buffer,
            sequences if uses_copies else None,
        )
        if uses_copies:
            self._view.write_back(sequences, tables)
        return moves

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the tables of the sequences in use describe trees. Reads them all."""
        to_host, shape = self.xp.to_host, self.shape
        used, position = to_host(self._view.is_used)[1:], to_host(self._view.position)[1:]
        bits = ((to_host(self._view.ancestors)[:, 1:, :, None] >> np.arange(WORD)) & 1).astype(np.bool_)
        above = bits.transpose(1, 2, 0, 3).reshape(*used.shape, WORDS * WORD)[..., : shape.slots]
        nodes = used[:, : shape.slots]
        if (above & used[:, :, None] & ~nodes[:, None, :]).any():
            raise RuntimeError("a node has an ancestor that is not in use")
        depth = position - to_host(self._view.length)[1:, None] + 1
        if (used & (above.sum(2) != np.maximum(depth - 1, 0)))[:, : shape.slots].any():
            raise RuntimeError("the number of a node's ancestors does not match its depth")
        if (nodes & (depth[:, : shape.slots] < 1)).any():
            raise RuntimeError("a node lies before its root")
        unread = to_host(self._view.num_computed)[1:] < to_host(self._view.length)[1:]
        if (used & unread[:, None]).any():
            raise RuntimeError("a tree has nodes although its root was not read")
