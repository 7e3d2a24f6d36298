"""Frames from the engines that are not applied yet, the engines that sent them, and frames of nodes for them.

An engine may send faster than the draft can apply (`Intake`). So the next message is taken from the tenant on
which the least time was spent, by weight, and when the time for messages is over the rest waits for the next
turn of the server's loop. A peer for which too many bytes wait is disconnected; if a key has too many, the
peer of that key with the most.

A step's frames (`FrameBatch`) have the new nodes of each tree, or a whole tree for a resync. They are kept as
columns over all sequences, which become one message without a loop over them.

Knows bytes, times, keys, tenants, tables and the ledger; does not know what received messages mean.
"""

import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.messages import HEARTBEAT_SECONDS, Floats, Ints, Nodes, TreePart
from ssd.draft.protocol.sockets import DraftSocket, Heard
from ssd.draft.server.session import DraftSession, Ledger, Longs
from ssd.draft.tree.arrays import Arrays
from ssd.draft.tree.forest import HEAD
from ssd.draft.tree.tables import Shape, Tables

FRAMES_AT_ONCE = 1024
"""Most frames received before any is applied."""
MAX_BYTES_OF_PEER = 64 << 20
"""More than an honest engine sends at once: openings of 256 sequences of 32,768 tokens."""
MAX_BYTES_OF_KEY = 128 << 20
"""Room for two such peers: a key with many peers must not fill the draft's memory."""
LEAST_SECONDS = 0.010
"""Time for messages in one turn, or half of the last draft step if that is longer. Keeps growing and
applying in balance, however long steps take."""


@dataclass(slots=True)
class _Frame:
    heard: Heard
    tenant: str
    parts: Iterator[object] | None = None
    """The messages that are left, once the frame has been started."""


class Intake:
    """Queues of received frames, by tenant."""

    def __init__(
        self,
        link: DraftSocket,
        clock: Callable[[], float],
        *,
        tenant_of: Callable[[Heard], str],
        weight_of: Callable[[str], float],
    ) -> None:
        self._link, self._clock = link, clock
        self._tenant_of, self._weight_of = tenant_of, weight_of
        self._waiting: dict[str, deque[_Frame]] = {}
        """By tenant; no queue is empty."""
        self._spent: dict[str, float] = {}
        """By tenant that waits, or waited in this turn: seconds spent, divided by its weight."""
        self._bytes_of_peer: Counter[bytes] = Counter()
        self._bytes_of_key: Counter[str] = Counter()
        self.has_received = False
        """Whether the last `receive` had any frame."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def num_bytes(self) -> int:
        """Size of the frames that wait."""
        return self._bytes_of_key.total()

    def receive(self, timeout: float) -> list[bytes]:
        """Receives frames; waits for the first one if the queues are empty.

        Returns peers that sent too much. Their frames are discarded.
        """
        too_many = list[bytes]()
        self.has_received = False
        for _ in range(FRAMES_AT_ONCE):
            heard = self._link.receive(0.0 if self._waiting else timeout)
            if heard is None:
                break
            self._keep(heard)
            self.has_received = True
            if self._bytes_of_peer[heard.peer] > MAX_BYTES_OF_PEER:
                too_many.append(heard.peer)
            elif self._bytes_of_key[heard.key] > MAX_BYTES_OF_KEY:
                too_many.append(self._largest_of(heard.key))
            else:
                continue
            self.discard(too_many[-1])
        return too_many

    def _largest_of(self, key: str) -> bytes:
        """The peer of this key with the most waiting bytes. The peer whose frame came last may be honest."""
        frames = itertools.chain.from_iterable(self._waiting.values())
        peers = {each.heard.peer for each in frames if each.heard.key == key}
        return max(peers, key=self._bytes_of_peer.__getitem__)

    def apply(self, begin: Callable[[Heard], Iterable[object]], step_seconds: float) -> None:
        """Applies messages, at least one, until the time for them is over.

        `begin` returns an iterator over a frame's messages; each step of it applies one.
        """
        ends = self._clock() + max(LEAST_SECONDS, step_seconds / 2)
        while self._waiting:
            tenant = min(self._waiting, key=self._spent.__getitem__)
            started = self._clock()
            self._apply_next(tenant, begin)
            ended = self._clock()
            self._spent[tenant] += (ended - started) / self._weight_of(tenant)
            if ended >= ends:
                break
        self._spent = {each: self._spent[each] for each in self._waiting}

    def discard(self, peer: bytes) -> None:
        """Drops all frames of a peer."""
        for tenant, frames in list(self._waiting.items()):
            mine = [each for each in frames if each.heard.peer == peer]
            for each in mine:
                self._release(each)
            left = deque(each for each in frames if each.heard.peer != peer)
            if left:
                self._waiting[tenant] = left
            else:
                del self._waiting[tenant]

    def _keep(self, heard: Heard) -> None:
        tenant = self._tenant_of(heard)
        if tenant not in self._waiting:
            # A tenant that was idle starts level with the least served one: idle tenants accrue no credit.
            least = min((self._spent[each] for each in self._waiting), default=0.0)
            self._spent[tenant] = max(least, self._spent.get(tenant, 0.0))
            self._waiting[tenant] = deque()
        self._waiting[tenant].append(_Frame(heard, tenant))
        self._bytes_of_peer[heard.peer] += len(heard.frame)
        self._bytes_of_key[heard.key] += len(heard.frame)

    def _apply_next(self, tenant: str, begin: Callable[[Heard], Iterable[object]]) -> None:
        frame = self._waiting[tenant][0]
        if frame.parts is None:
            frame.parts = iter(begin(frame.heard))
        if next(frame.parts, frame) is not frame:
            return
        # Applying the message may have discarded all frames of its peer.
        frames = self._waiting.get(tenant)
        if frames and frames[0] is frame:
            frames.popleft()
            self._release(frame)
            if not frames:
                del self._waiting[tenant]

    def _release(self, frame: _Frame) -> None:
        heard, size = frame.heard, len(frame.heard.frame)
        self._bytes_of_peer[heard.peer] -= size
        self._bytes_of_key[heard.key] -= size
        if not self._bytes_of_peer[heard.peer]:
            del self._bytes_of_peer[heard.peer]


MAX_PEERS_OF_KEY = 1024
"""Most engines connected with one key, or without a key. Bounds the memory that peers take."""


@dataclass(slots=True)
class Peer:
    """A connected engine."""

    name: bytes
    """By which the socket knows it."""
    key: str
    """The name of its key; empty if it has none."""
    tenant: str
    vocab_size: int
    rows: NDArray[np.bool_]
    """Flags of the rows of the tables that belong to its sessions."""
    last_sent: float = 0.0
    """When the draft last sent it something."""
    awaits_reply: bool = False
    """It has sent a message since then."""
    resyncs: set[int] = field(default_factory=set)
    """Sequences for which it asked the whole tree. Each tree is sent once a turn."""
    unknown: dict[int, int] = field(default_factory=dict)
    """Epochs, by `seq`, of outcomes for sequences that the draft does not have. Answered once a turn."""
    sessions: dict[int, DraftSession] = field(default_factory=dict)
    """By `seq`, the engine's id of the sequence."""


class Peers:
    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, Peer] = OrderedDict()
        """Those that were sent nothing for longest first."""
        self._num_of_key: Counter[str] = Counter()
        self._num_of_tenant: Counter[str] = Counter()
        self._beat_at = 0.0

    def __iter__(self) -> Iterator[tuple[bytes, Peer]]:
        """Over a copy: peers may be removed meanwhile."""
        return iter(list(self._peers.items()))

    def __getitem__(self, name: bytes) -> Peer:
        return self._peers[name]

    def get(self, name: bytes) -> Peer | None:
        return self._peers.get(name)

    def note_sent(self, name: bytes, now: float) -> None:
        peer = self._peers.get(name)
        if peer is not None:
            peer.last_sent, peer.awaits_reply = now, False
            self._peers.move_to_end(name)

    def due_for_heartbeat(self, now: float) -> list[bytes]:
        """Peers that were sent nothing for a while. They are spread over the second half of the interval, so
        that peers which came at once are not written to at once."""
        half = HEARTBEAT_SECONDS / 2
        share = math.ceil(len(self._peers) * (now - self._beat_at) / half)
        self._beat_at = now
        found = list[bytes]()
        for name, peer in self._peers.items():
            seconds = now - peer.last_sent
            if seconds < half or (seconds < HEARTBEAT_SECONDS and len(found) >= share):
                break
            found.append(name)
        return found

    def add(self, name: bytes, peer: Peer) -> None:
        self._peers[name] = peer
        self._num_of_key[peer.key] += 1
        self._num_of_tenant[peer.tenant] += 1

    def pop(self, name: bytes) -> Peer | None:
        peer = self._peers.pop(name, None)
        if peer is not None:
            for counter, each in ((self._num_of_key, peer.key), (self._num_of_tenant, peer.tenant)):
                counter[each] -= 1
                if not counter[each]:
                    del counter[each]
        return peer

    def has_tenant(self, tenant: str) -> bool:
        return tenant in self._num_of_tenant

    def refusal_of(self, key: str) -> str:
        """Why another engine with this key is refused; empty if it is accepted."""
        if self._num_of_key[key] < MAX_PEERS_OF_KEY:
            return ""
        return (
            f"{MAX_PEERS_OF_KEY} engines with this key are connected already: give some another draft or key"
        )


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

    def of(self, rows: NDArray[np.bool_]) -> "NewNodes":
        """Those of the rows that are flagged."""
        chosen = rows[self.rows]
        if chosen.all():
            return self
        mine = chosen.repeat(self.number)
        return NewNodes(
            self.rows[chosen],
            self.number[chosen],
            self.root[chosen],
            self.nodes[:, mine],
            self.logprobs[mine],
        )


@dataclass(frozen=True, slots=True)
class SessionsAt:
    """The sessions when a step was launched, by row of the tables."""

    openings: Longs
    """Which session had the row (`Ledger.openings`)."""
    n: Longs
    """Number of applied outcomes."""
    length: Longs


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """One frame for each of some sequences: new nodes and the frames' heads."""

    new: NewNodes
    heads: Longs
    """[8, R]: the columns of `NodesHeads` (protocol/messages.py)."""

    @property
    def is_empty(self) -> bool:
        return not len(self.new.rows)

    def message(self) -> Nodes:
        nodes = np.ascontiguousarray(self.new.nodes, "<i4").tobytes()
        logprobs = np.ascontiguousarray(self.new.logprobs, "<f4").tobytes()
        return Nodes(self.heads.astype("<i8").tobytes(), nodes, logprobs)

    def of(self, rows: NDArray[np.bool_]) -> "FrameBatch":
        """The frames of the rows that are flagged."""
        chosen = rows[self.new.rows]
        if chosen.all():
            return self
        return FrameBatch(self.new.of(rows), self.heads[:, chosen])

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
                ),
            )


def numbered_frames(new: NewNodes, ledger: Ledger, at: SessionsAt, *, full: bool) -> FrameBatch:
    """The next frame of each sequence, of nodes that were found at that time. Counts it as sent."""
    rows = new.rows
    heads = np.empty((8, len(rows)), np.int64)
    heads[0], heads[1], heads[2], heads[3] = (
        ledger.seq[rows],
        ledger.epoch[rows],
        ledger.sent[rows],
        at.n[rows],
    )
    heads[4], heads[5], heads[6], heads[7] = new.root, at.length[rows], new.number, full
    ledger.sent[rows] += 1
    return FrameBatch(new, heads)


def new_nodes(fresh: Ints, children: int) -> NewNodes:
    """The new nodes of each sequence that has some. `fresh` [W, …] is written by `attach_rows`."""
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
