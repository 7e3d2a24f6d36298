"""Frames for the engines: a step's new nodes of each tree, and whole trees for a resync.

A step's frames are kept as columns over all sequences, which become one message without a loop over them.
Knows tables and the ledger; does not know peers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.messages import Drawn, Nodes, TreePart
from ssd.draft.server.session import Ledger, Longs
from ssd.draft.tree.arrays import Arrays
from ssd.draft.tree.attach import HEAD
from ssd.draft.tree.tables import Shape, Tables

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NewNodes:
    """New nodes of some sequences, in the order of rows, and for each sequence in the order of ids."""

    rows: Longs
    number: Longs
    """Nodes of each sequence."""
    root: Longs
    """Id of each sequence's root."""
    nodes: Ints
    """[3, N]: ids, parents, tokens."""
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """One frame for each of some sequences: new nodes and the frames' heads."""

    new: NewNodes
    heads: Longs
    """[8, R]: the columns of `NodesHeads` (protocol/messages.py)."""
    drawn: Sequence[tuple[int, Drawn]] = ()
    """With rows of the tables: different engines may use the same sequence id."""

    @property
    def is_empty(self) -> bool:
        return not len(self.new.rows)

    def message(self) -> Nodes:
        nodes = np.ascontiguousarray(self.new.nodes, "<i4").tobytes()
        logprobs = np.ascontiguousarray(self.new.logprobs, "<f4").tobytes()
        return Nodes(self.heads.astype("<i8").tobytes(), nodes, logprobs, [each for _row, each in self.drawn])

    def of(self, rows: NDArray[np.bool_]) -> "FrameBatch":
        """The frames of the rows that are flagged."""
        chosen = rows[self.new.rows]
        if chosen.all():
            return self
        mine, new = chosen.repeat(self.new.number), self.new
        some = NewNodes(
            new.rows[chosen], new.number[chosen], new.root[chosen], new.nodes[:, mine], new.logprobs[mine]
        )
        return FrameBatch(some, self.heads[:, chosen], [each for each in self.drawn if rows[each[0]]])

    def parts(self) -> Iterator[tuple[int, TreePart]]:
        """The frames one by one, with their rows."""
        ids, parents, tokens = self.new.nodes.tolist()
        logprobs, start = self.new.logprobs.tolist(), 0
        for row, head in zip(self.new.rows.tolist(), self.heads.T.tolist(), strict=True):
            seq, epoch, number, n, root, length, count, full = head
            part = slice(start, start + count)
            start += count
            yield (
                row,
                TreePart(
                    seq,
                    epoch,
                    number,
                    n,
                    root,
                    length,
                    ids[part],
                    parents[part],
                    tokens[part],
                    logprobs[part],
                    full=bool(full),
                    drawn=[each for mine, each in self.drawn if mine == row],
                ),
            )


def numbered_frames(new: NewNodes, ledger: Ledger, *, full: bool) -> FrameBatch:
    """The next frame of each sequence. Counts it as sent."""
    rows = new.rows
    heads = np.empty((8, len(rows)), np.int64)
    heads[0], heads[1], heads[2], heads[3] = (
        ledger.seq[rows],
        ledger.epoch[rows],
        ledger.sent[rows],
        ledger.n[rows],
    )
    heads[4], heads[5], heads[6], heads[7] = new.root, ledger.length[rows], new.number, full
    ledger.sent[rows] += 1
    return FrameBatch(new, heads)


def new_nodes(fresh: Ints, children: int) -> NewNodes:
    """The new nodes of each sequence that has some. `fresh` [W, …] is written by `attach.py`."""
    has_any = fresh[:, 1] > 0
    if not has_any.all():
        fresh = fresh[has_any]
    rows = fresh[:, 0]
    if (rows[1:] < rows[:-1]).any():
        # Rows of runs come after the rows of all trees.
        fresh = fresh[np.argsort(rows, kind="stable")]
        rows = fresh[:, 0]
    is_last = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_last[:-1])
    totals = fresh[:, 1].cumsum()
    heads, of_each = fresh[is_last].astype(np.int64), totals[is_last]
    of_each[1:] -= of_each[:-1].copy()
    return NewNodes(heads[:, 0], of_each, heads[:, 4], *_columns(fresh, children))


def _columns(fresh: Ints, children: int) -> tuple[Ints, Floats]:
    """Ids, parents and tokens [3, N] of all children, and their log-probabilities [N]."""
    number, ranks = fresh[:, 1], np.arange(children, dtype=np.int32)
    ids, tokens = fresh[:, 3, None] + ranks, fresh[:, HEAD : HEAD + children]
    parents, logprobs = fresh[:, 2, None], fresh[:, HEAD + children :].view(np.float32)
    if (number == children).all():
        # The usual case: every family is full.
        nodes = np.empty((3, *ids.shape), np.int32)
        nodes[0], nodes[1], nodes[2] = ids, parents, tokens
        return nodes.reshape(3, -1), logprobs.reshape(-1)
    exists = ranks < number[:, None]
    return np.stack((ids[exists], fresh[:, 2].repeat(number), tokens[exists])), logprobs[exists]


def whole_tree(xp: Arrays, shape: Shape, tables: Tables, row: int) -> NewNodes:
    """All nodes of a tree except its root."""

    def to_host(table: Any) -> NDArray[Any]:
        return xp.to_host(table[row])

    families = np.flatnonzero(to_host(tables.is_used))
    first = to_host(tables.first_id)[families]
    order = np.argsort(first)
    families, first = families[order], first[order]
    root, is_root = int(tables.root_id[row]), families == shape.root
    parents = np.where(is_root, root, to_host(tables.node_id)[families])
    tokens = to_host(tables.child_token)[families]
    values = np.where(is_root, 0.0, to_host(tables.value)[families])
    exists = tokens >= 0
    ids = (first[:, None] + np.arange(shape.children))[exists]
    return NewNodes(
        np.array([row]),
        np.array([len(ids)]),
        np.array([root]),
        np.stack((ids, parents.repeat(exists.sum(1)), tokens[exists])).astype(np.int32),
        (to_host(tables.child_value)[families] - values[:, None]).astype(np.float32)[exists],
    )
