"""The engine's copies of all rolling trees: one table of arrays, kept in step by numbers, not by timing.

Frames of nodes and outcomes of verifications may come in any order. When a verification ends, the mirror's
root advances at once, without asking the draft.
A frame says which outcomes the draft had applied when it was made (`n`),
how long the text was then, and how many frames came before it (`number`): from these the mirror knows what
to graft, what to drop and when something is missing. No sockets, no clock, no torch.

A sequence is known by its id on the wire, `seq`, which is also its index in every column of the table. It
has SLOTS places for nodes; node `id` lies at place id % SLOTS. Ids are never used
twice, so a place that holds another id says that the node is gone. Lost branches stay until they are written
over: nothing leads to them. Siblings have consecutive ids, so a node knows its children by the first one's id
and their count. A frame is taken in for all its sequences at once.
"""

import math
from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.messages import (
    Floats,
    Ints,
    Longs,
    Nodes,
    NodesHeads,
    SaidNodes,
    unpack_floats,
)

UNNAMED = -1
"""Stands for the id of a root until the draft has sent that id."""

SLOTS = 4096
"""Places for nodes of each sequence, far more than a draft fills. A node that is overwritten is only lost."""
_RECENT = 1024
"""Tokens at the end of a text that a late frame may still have to follow."""
_EMPTY = -2
_FEW = 8
"""Sequences for which one path after the other takes less time than arrays do."""

Bools = NDArray[np.bool_]


class Knowledge(Enum):
    """What a mirror knows at the end of a verification, about what follows."""

    HIT = "hit"
    """The text's last token is a node of the mirror, and that node has children."""
    LATE = "late"
    """The draft is behind: it has sent no children of `root`, or `root` lies before the latest outcome."""
    UNKNOWN = "unknown"
    """The draft sent children in time, and none of them is the decided token."""
    UNHEARD = "unheard"
    """The draft has said nothing of this sequence yet, or part of what it said is missing."""

    __hash__ = object.__hash__  # Enum's own is a Python function, and a step hashes one for each sequence.


_BY_CODE = (*Knowledge,)
_HIT, _LATE, _UNKNOWN, _UNHEARD = range(len(_BY_CODE))

_SEQ_COLUMNS = {
    "epoch": (np.int64, 0),  # 0: no mirror
    "draft": (np.int64, 0),  # whose tree it is
    "n": (np.int64, 0),  # outcomes so far
    "num_frames": (np.int64, 0),  # frames taken, and so the number of the one that is due
    "length": (np.int64, 0),  # tokens of the text
    "length_before": (np.int64, 0),  # the same before its latest outcome
    "root": (np.int64, UNNAMED),  # the last node of the text that is known
    "root_length": (np.int64, 0),  # tokens of the text up to there
    "largest": (np.int64, UNNAMED),  # id seen
    "is_out_of_sync": (np.bool_, 0),  # a frame is missing: nothing is taken until the whole tree comes
    "was_heard": (np.bool_, 0),
}
_ID, _TOKEN, _FIRST, _COUNT, _LOGPROB = range(5)
"""Columns of `Mirrors.nodes`: a node's id, its token, its first child's id, how many children it has, and the
bits of its log-probability. One row for each node, so that a look at a node misses the cache once. A device
has copies of all but the last (kernels/walk.py, which relies on their order)."""
_EMPTY_NODE = np.array([_EMPTY, 0, 0, 0, 0], np.int32)


class Mirrors:
    epoch: Longs
    draft: Longs
    n: Longs
    num_frames: Longs
    length: Longs
    length_before: Longs
    root: Longs
    root_length: Longs
    largest: Longs
    is_out_of_sync: Bools
    was_heard: Bools

    def __init__(self, num_sequences: int = 0) -> None:
        self.recent = np.zeros(0, np.int32)
        self.nodes: Ints = np.zeros((0, len(_EMPTY_NODE)), np.int32)
        """One row for each place."""
        self._changes: list[Longs] | None = None
        """Places of nodes that were written since `take_changes`; None: nobody asks."""
        for name, (kind, value) in _SEQ_COLUMNS.items():
            setattr(self, name, np.full(0, value, kind))
        self._make_room(num_sequences)

    def note_changes(self) -> None:
        """Keep the places of all nodes, and of those that change from now on, for `take_changes`."""
        self._changes = [np.flatnonzero(self.ids != _EMPTY)]

    def take_changes(self) -> Longs:
        """Places of the nodes that were written since the last call; some more than once."""
        if not self._changes:
            return np.zeros(0, np.int64)
        changes, self._changes = self._changes, []
        return np.concatenate(changes)

    def open(self, seq: int, epoch: int, length: int, *, draft: int = 0) -> None:
        """A tree begins at the end of a text of `length` tokens. Only this draft may send its nodes."""
        while seq >= len(self.epoch):
            self._make_room(max(8, len(self.epoch)))
        for name, (_kind, value) in _SEQ_COLUMNS.items():
            getattr(self, name)[seq] = value
        self.epoch[seq], self.draft[seq], self.length[seq] = epoch, draft, length
        self._forget_nodes(seq)

    def close(self, seq: int) -> None:
        if seq < len(self.epoch):
            self.epoch[seq] = 0

    def take(self, message: Nodes, *, draft: int = 0) -> None:
        """Takes a draft's frame in, or drops it. No frame can change the tokens of the text."""
        part = SaidNodes(message.columns(), message.node_columns(), unpack_floats(message.logprobs))
        part = part.of(self._due(part.heads, draft))
        seqs = part.heads.seq
        if not len(seqs):
            return
        self.num_frames[seqs] = part.heads.number + 1
        self.was_heard[seqs] = True
        for seq in seqs[part.heads.full > 0].tolist():
            self._forget_nodes(seq)
        bad = self._nonsense(part)
        if bad.any():
            self.is_out_of_sync[seqs[bad]] = True
            part = part.of(~bad)
            seqs = part.heads.seq
        self._place_roots(part.heads)
        if part.logprobs.size:
            self._graft(part)
        self._follow(seqs)

    def advance(self, seqs: Longs, counts: Longs, tokens: Ints) -> list[Knowledge]:
        """Moves the roots along the new tokens of their texts; returns what is known about what follows.

        `counts`: of each sequence, how many of the tokens are its own. No sequence may be named twice.
        """
        starts, owners = self.length[seqs], seqs.repeat(counts)
        positions = (starts - counts.cumsum() + counts).repeat(counts) + np.arange(len(tokens))
        self.recent[owners * _RECENT + positions % _RECENT] = tokens
        self.length_before[seqs], self.length[seqs] = starts, starts + counts
        self.n[seqs] += 1
        self._follow(seqs)
        return self.knowledge(seqs)

    def knowledge(self, seqs: Longs) -> list[Knowledge]:
        at = self.root_length[seqs]
        codes = np.where(at == self.length[seqs], _HIT, _UNKNOWN)
        # Without children the draft has not computed this node yet; before the latest outcome it had not even
        # followed the text so far. Neither says anything about how well it guesses.
        has_children = self._num_children(seqs, self.root[seqs]) > 0
        codes[~has_children | (at < self.length_before[seqs])] = _LATE
        codes[self.is_out_of_sync[seqs] | ~self.was_heard[seqs]] = _UNHEARD
        return [_BY_CODE[code] for code in codes.tolist()]

    def path(self, seq: int, limit: int) -> tuple[list[int], list[float]]:
        """The most likely known continuation: its tokens, and the chance that the text runs through each."""
        view, start, node = self._view, seq * SLOTS, self.end_of(seq)
        tokens, chances, value = list[int](), list[float](), 0.0
        if node is None:
            return tokens, chances
        place = start + node % SLOTS
        while len(tokens) < limit and view.ids[place] == node and view.counts[place]:
            node = view.firsts[place]
            place = start + node % SLOTS
            if view.ids[place] != node:
                break
            value += view.logprobs[place]
            tokens.append(view.tokens[place])
            chances.append(math.exp(value))
        return tokens, chances

    def paths(self, seqs: Sequence[int], limits: Sequence[int]) -> list[tuple[list[int], list[float]]]:
        """`path` of each sequence: at once, where there are many."""
        if len(seqs) < _FEW:
            return [*map(self.path, seqs, limits)]
        mine, most, depth = np.array(seqs), np.array(limits), max(limits)
        starts, node = mine * SLOTS, self.root[mine]
        goes_on = (self.epoch[mine] > 0) & ~self.is_out_of_sync[mine]
        goes_on &= self.root_length[mine] == self.length[mine]
        tokens = np.zeros((depth, len(mine)), np.int32)
        values, lengths = np.zeros((depth + 1, len(mine))), np.zeros(len(mine), np.int64)
        rows = self._rows_at(starts, node)
        for count in range(depth):
            goes_on &= (count < most) & (rows[:, _ID] == node) & (rows[:, _COUNT] > 0)
            node = rows[:, _FIRST]
            rows = self._rows_at(starts, node)
            goes_on &= rows[:, _ID] == node
            if not goes_on.any():
                break
            tokens[count] = rows[:, _TOKEN]
            values[count + 1] = values[count] + rows[:, _LOGPROB].view(np.float32)
            lengths += goes_on
        chances = np.exp(values[1:]).T.tolist()
        found = zip(tokens.T.tolist(), chances, lengths.tolist(), strict=True)
        return [(path[:length], likely[:length]) for path, likely, length in found]

    def end_of(self, seq: int) -> int | None:
        """The node of the text's last token, if it is known."""
        view = self._view
        is_known = (
            view.epoch[seq] and not view.is_out_of_sync[seq] and view.root_length[seq] == view.length[seq]
        )
        return view.root[seq] if is_known else None

    def children(self, seq: int, node: int) -> list[tuple[int, int, float]]:
        """Of a node, the likeliest first: id, token and log-probability."""
        view, start = self._view, seq * SLOTS
        place = start + node % SLOTS
        if view.ids[place] != node:
            return []
        ids = range(view.firsts[place], view.firsts[place] + view.counts[place])
        places = [(child, start + child % SLOTS) for child in ids]
        return [(child, view.tokens[at], view.logprobs[at]) for child, at in places if view.ids[at] == child]

    def child(self, seq: int, node: int, token: int) -> int | None:
        """The child of a node that is this token."""
        view, start = self._view, seq * SLOTS
        place = start + node % SLOTS
        if view.ids[place] == node:
            first = view.firsts[place]
            for child in range(first, first + view.counts[place]):
                place = start + child % SLOTS
                if view.tokens[place] == token and view.ids[place] == child:
                    return child
        return None

    def content(self, seq: int) -> list[tuple[int, int, int, float]]:
        """Id, parent's id, token and log-probability of every node below the root, if that is known."""
        if self.root_length[seq] < self.length[seq]:
            return []
        found, waiting = list[tuple[int, int, int, float]](), [int(self.root[seq])]
        while waiting:
            parent = waiting.pop()
            place = seq * SLOTS + parent % SLOTS
            if self.ids[place] != parent:
                continue
            first = int(self.firsts[place])
            for node in range(first, first + int(self.counts[place])):
                at = seq * SLOTS + node % SLOTS
                if self.ids[at] == node:
                    found.append((node, parent, int(self.tokens[at]), float(self.logprobs[at])))
                    waiting.append(node)
        return sorted(found)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless the table describes one tree for each sequence."""
        for seq in np.flatnonzero(self.epoch).tolist():
            ids = self.ids[seq * SLOTS : (seq + 1) * SLOTS]
            used = np.flatnonzero(ids != _EMPTY)
            _require((ids[used] % SLOTS == used).all(), "a node lies in another's place")
            _require((ids[used] <= self.largest[seq]).all(), "a node is younger than the youngest")
            _require(self.root_length[seq] <= self.length[seq], "a root lies beyond its text")
            nodes = self.content(seq)
            _require(len({each[0] for each in nodes}) == len(nodes), "a node hangs in two places")
            pairs = {each[1:3] for each in nodes}
            _require(len(pairs) == len(nodes), "a node has a child twice")

    def _make_room(self, count: int) -> None:
        for name, (kind, value) in _SEQ_COLUMNS.items():
            setattr(self, name, np.concatenate((getattr(self, name), np.full(count, value, kind))))
        self.recent = np.concatenate((self.recent, np.zeros(count * _RECENT, np.int32)))
        self.nodes = np.concatenate((self.nodes, np.tile(_EMPTY_NODE, (count * SLOTS, 1))))
        self.ids, self.tokens, self.firsts, self.counts = self.nodes.T[:_LOGPROB]
        self.logprobs: Floats = self.nodes[:, _LOGPROB].view(np.float32)
        self._view = _View(self)

    def _forget_nodes(self, seq: int) -> None:
        start = seq * SLOTS
        if self._changes is not None:
            self._note(start + np.flatnonzero(self.ids[start : start + SLOTS] != _EMPTY))
        self.ids[start : start + SLOTS] = _EMPTY

    def _note(self, *places: Longs) -> None:
        if self._changes is not None:
            self._changes += places

    def _rows_at(self, starts: Longs, nodes: NDArray[np.integer]) -> Ints:
        """The rows of `nodes` where these ids would be stored. A row may hold another node whose id has the
        same low bits, so compare the ids. `starts`: the first place of each node's sequence."""
        return self.nodes.take(starts + (nodes & (SLOTS - 1)), axis=0)

    def _num_children(self, seqs: Longs, nodes: Longs) -> NDArray[np.integer]:
        rows = self._rows_at(seqs * SLOTS, nodes)
        found: NDArray[np.integer] = rows[:, _COUNT] * (rows[:, _ID] == nodes)
        return found

    def _due(self, heads: NodesHeads, draft: int) -> Bools:
        """Which sequences to take in. One whose previous frame is missing goes out of sync instead."""
        inside = heads.seq < len(self.epoch)
        seqs = np.where(inside, heads.seq, 0) if len(self.epoch) else heads.seq[:0]
        if not len(seqs):
            return np.zeros(len(heads.seq), np.bool_)
        due = inside & (self.epoch[seqs] == heads.epoch) & (heads.number >= self.num_frames[seqs])
        due &= (heads.n <= self.n[seqs]) & (self.draft[seqs] == draft)
        gap = due & ((heads.number > self.num_frames[seqs]) | self.is_out_of_sync[seqs]) & (heads.full == 0)
        if gap.any():
            self.is_out_of_sync[seqs[gap]] = True
        taken: Bools = due & ~gap
        return taken

    def _nonsense(self, part: SaidNodes) -> Bools:
        """Which of the sequences contradict themselves, or what was said before."""
        heads = part.heads
        seqs, is_new = heads.seq, heads.full == 0
        behind = self.length[seqs] - heads.length
        bad: Bools = np.where(heads.n == self.n[seqs], behind != 0, behind <= 0)
        bad |= is_new & (heads.length == self.root_length[seqs]) & (heads.root != self.root[seqs])
        if not part.logprobs.size:
            return bad
        owners, starts = part.owners, part.starts
        ids, parents, tokens = part.nodes
        some = heads.num_nodes > 0
        bad[some] |= is_new[some] & (ids[part.firsts[some]] <= self.largest[seqs[some]])
        gaps = (ids[1:] - ids[:-1] != 1) & ~part.changes[1:]
        if gaps.any():
            bad[owners[1:][gaps]] = True
        owned, parents = owners[starts], parents[starts].astype(np.int64)
        again = self._num_children(seqs[owned], parents) > 0
        if again.any():
            bad[owned[again]] = True
        # No node has its children in two parts, and none has a child twice.
        groups = part.changes.cumsum()
        for keys, whose in ((owned << 32 | parents, owned), (groups << 32 | tokens, owners)):
            ordered = np.sort(keys)
            if (ordered[1:] == ordered[:-1]).any():
                order = np.argsort(keys)
                bad[whose[order[1:][np.diff(keys[order]) == 0]]] = True
        return bad

    def _place_roots(self, heads: NodesHeads) -> None:
        """Moves a mirror's root to the draft's root, where that is nearer to the end of the text.

        After a miss the draft begins again from a root of its own; a whole tree brings its root too.
        """
        nearer = (heads.full > 0) | (heads.length > self.root_length[heads.seq])
        if not nearer.any():
            return
        seqs, roots = heads.seq[nearer], heads.root[nearer]
        self.root[seqs], self.root_length[seqs] = roots, heads.length[nearer]
        self.largest[seqs] = np.maximum(self.largest[seqs], roots)
        self.is_out_of_sync[seqs] = False
        place = seqs * SLOTS + (roots & (SLOTS - 1))
        place, roots = place[self.ids[place] != roots], roots[self.ids[place] != roots]
        self.ids[place], self.counts[place] = roots, 0
        self._note(place)

    def _graft(self, part: SaidNodes) -> None:
        heads, owners, starts = part.heads, part.owners, part.starts
        ids, parents, tokens = part.nodes
        offsets = heads.seq[owners] * SLOTS
        place = offsets + (ids & (SLOTS - 1))
        self.ids[place], self.tokens[place] = ids, tokens
        self.logprobs[place], self.counts[place] = part.logprobs, 0
        parents = parents[starts]
        above = offsets[starts] + (parents & (SLOTS - 1))
        # Nodes whose parent is not in the mirror belong to a lost branch: no path from the root reaches them.
        known = self.ids[above] == parents
        above, ends = above[known], np.append(starts[1:], len(ids))
        self.firsts[above] = ids[starts][known]
        self.counts[above] = (ends - starts)[known]
        self._note(place, above)
        some = heads.num_nodes > 0
        last = ids[part.firsts[some] + heads.num_nodes[some] - 1]
        self.largest[heads.seq[some]] = np.maximum(self.largest[heads.seq[some]], last)

    def _follow(self, seqs: Longs) -> None:
        """Moves roots along their texts, as far as these are known."""
        behind = self.length[seqs] - self.root_length[seqs]
        seqs = seqs[(behind > 0) & (behind <= _RECENT)]
        while len(seqs) >= _FEW:
            at = self.root_length[seqs]
            rows, children = self._next_nodes(seqs, self.recent[seqs * _RECENT + at % _RECENT])
            seqs, at = seqs[rows], at[rows] + 1
            self.root[seqs], self.root_length[seqs] = children, at
            seqs = seqs[at < self.length[seqs]]
        for seq in seqs.tolist():
            self._follow_one(seq)

    def _follow_one(self, seq: int) -> None:
        """Moves one sequence's root along its text, as far as the nodes are known. Faster than arrays for
        fewer than `_FEW` sequences."""
        view, node = self._view, self._view.root[seq]
        for at in range(view.root_length[seq], view.length[seq]):
            child = self.child(seq, node, view.recent[seq * _RECENT + at % _RECENT])
            if child is None:
                return
            node = child
            view.root[seq], view.root_length[seq] = node, at + 1

    def _next_nodes(self, seqs: Longs, tokens: Ints) -> tuple[Longs, Longs]:
        """The children of the roots that are these tokens: of which of the sequences, and their ids."""
        starts, roots = seqs * SLOTS, self.root[seqs]
        above = self._rows_at(starts, roots)
        counts = above[:, _COUNT] * (above[:, _ID] == roots)
        # More siblings than places write over each other.
        order = np.arange(min(int(counts.max()), SLOTS))
        children = above[:, _FIRST, None] + order
        below = self._rows_at(starts[:, None], children)
        is_next = (order < counts[:, None]) & (below[..., _ID] == children)
        is_next &= below[..., _TOKEN] == tokens[:, None]
        rows, places = is_next.nonzero()
        return rows, children[rows, places]


class _View:
    """The table's memory, for reading and writing single numbers.

    A frame or an outcome concerns many sequences, for which arrays are fast. A path follows a few links, and
    reading one number from an array takes twenty times as long as from a memoryview.
    """

    def __init__(self, table: Mirrors) -> None:
        for name in (*_SEQ_COLUMNS, "recent", "ids", "tokens", "firsts", "counts", "logprobs"):
            setattr(self, name, memoryview(getattr(table, name)))

    epoch: "memoryview[int]"
    length: "memoryview[int]"
    root: "memoryview[int]"
    root_length: "memoryview[int]"
    is_out_of_sync: "memoryview[bool]"
    ids: "memoryview[int]"
    tokens: "memoryview[int]"
    firsts: "memoryview[int]"
    counts: "memoryview[int]"
    logprobs: "memoryview[float]"
    recent: "memoryview[int]"


def _require(condition: object, message: str) -> None:
    if not condition:
        raise RuntimeError(message)
