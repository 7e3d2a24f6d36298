"""The checks of simulated pools, at any time and at the end.

- After every event: memory and queues are bounded, ended requests and tenants that left are forgotten, and
  rows of a draft are shared by weight while all tenants want more.
- Every few events: the tables of each side are intact, and a sequence has the same text and the same tree on
  both sides, if both have applied the same messages.
- After the last fault: every target has hits again in time, no connection was made anew without a cause, and
  all sequences agree, unless a lie or a lost frame may have changed them (simulation.py).
- When all targets are gone: drafts hold no session, KV block, tenant or seat of theirs.
- Always: the client has the target's texts (target.py), and no exception or error is logged.

`check_target` and `check_draft` are cheap and run after every event of a process; the integrity checks of
both sides read all tables, and run after every few. Each raises ViolationError. They look at private columns:
what has to be bounded is mostly nobody else's business.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from ssd.draft.client.connection import ConnectionState
from ssd.draft.client.replica import Replica
from ssd.draft.client.router import ClientSession
from ssd.draft.server.frames import MAX_BYTES_OF_KEY
from ssd.draft.server.scheduler import DraftScheduler
from ssd.draft.server.session import DraftSession
from tests.pool.draft import DraftHost
from tests.pool.target import Target
from tests.pool.world import ViolationError

_MOST_TENANTS = 17
_STEPS_APART = 1.0


def require(condition: object, message: str) -> None:
    if not condition:
        raise ViolationError(message)


def integrity(side: Target | DraftHost) -> None:
    try:
        if isinstance(side, Target):
            side.client.check_integrity()
        else:
            side.server.check_integrity()
    except RuntimeError as error:
        raise ViolationError(f"integrity of {side.process.name}: {error}") from error


def check_target(target: Target) -> None:
    client, pool = target.client, target.client.pool
    router, mirrors, most = client._router, client.mirrors, max(8, 2 * target.most)
    require(client._sessions.keys() <= target.requests.keys(), "a session has no request")
    require(len(router._by_seq) == len(client._sessions), "the router has other sessions than the client")
    require(len(mirrors.epoch) <= most, "there are far more mirrors than there were sequences")
    require(
        len(router._free_seqs) + len(router._by_seq) <= target.most, "ids of sequences are not used again"
    )
    require(target.speculator._knowledge.keys() <= target.requests.keys(), "ended requests are remembered")
    require(len(pool._tenants) < _MOST_TENANTS, "a draft invents names without end")
    held = Counter[int]()
    for session in client._sessions.values():
        held[id(session.replica)] += 1
        if session.replica is not None:
            require(session.replica in pool.replicas, "a session is open with a draft that was left")
        elif not router.is_paused:
            waits = session.seq in router._waiting or session.seq in router._homeless
            require(waits, "a sequence without a draft does not wait for one")
        require(session.declined.keys() <= {*pool.ready}, "refusals of drafts that are gone are kept")
    for replica in pool.replicas:
        require(replica.num_own_sequences == held[id(replica)], "a draft's sequences are miscounted")
        connection = replica.connection
        if connection is not None and connection.state is ConnectionState.READY:
            require(not connection._outbox, "messages were posted and not sent")


def check_draft(host: DraftHost) -> None:
    scheduler, server = host.scheduler, host.server
    require(scheduler.num_sessions <= host.plan.sequences, "there are more sessions than trees")
    require(server._intake.num_bytes <= MAX_BYTES_OF_KEY + (8 << 20), "frames wait without bound")
    ledger = scheduler.ledger
    in_flight = ledger.sent - ledger.arrived
    # A whole tree is sent whether or not there is credit: at most one for each question.
    require(
        (in_flight[ledger.is_open] <= ledger.credit[ledger.is_open] + _WHOLE_TREES).all(), "frames in flight"
    )
    tenants = scheduler.tenants
    require(len(tenants._debts) <= _MOST_DEBTS, "debts of tenants are kept for ever")
    with_peers = {peer.tenant for _name, peer in server._peers}
    require(tenants._num_had.keys() <= with_peers, "rows of tenants without peers are remembered")


_WHOLE_TREES = 64
_MOST_DEBTS = 64


class Shares:
    """Rows of a draft's tenants, from when all of them want more than they get until one does not.

    While that is so, the accounts of two tenants (rows by weight, with what they owe from before) may differ
    by the rows of a few steps, however long the window is; an earlier difference may only shrink.
    While prompts wait there is no window: chunks bound what a tenant of prompts alone can have.
    """

    def __init__(self, host: DraftHost) -> None:
        self._host, self._scheduler = host, host.scheduler
        self._since: dict[str, float] = {}
        """Each tenant's account less its rows, when the window began."""
        self._allowed = 0.0
        self._first_rows = 0
        self.longest = 0
        """Rows of the longest window."""
        self.worst = 0.0
        """Largest difference, as a part of what is allowed."""

    def look(self) -> None:
        scheduler = self._host.scheduler
        if self._scheduler is not scheduler:
            self._scheduler, self._since = scheduler, {}  # The draft was started again.
        wanting = wanting_of(scheduler)
        if len(wanting) < 2 or not all(wanting.values()) or scheduler._prefill.unread:
            self._since = {}
        elif self._since.keys() != wanting.keys():
            self._begin(wanting)
        else:
            self._check()

    def _begin(self, names: Iterable[str]) -> None:
        tenants, plan, rows = self._scheduler.tenants, self._host.plan, self._host.model.rows
        accounts = {name: float(tenants.used[tenants._numbers[name]]) for name in names}
        self._since = {name: account - rows[name] / self._weight(name) for name, account in accounts.items()}
        least = min(map(self._weight, accounts))
        steps = _STEPS_APART * (plan.shape().num_rows + plan.chunk) / least
        self._allowed = max(steps, max(accounts.values()) - min(accounts.values()) + steps / 2)
        self._first_rows = sum(rows.values())

    def _check(self) -> None:
        rows = self._host.model.rows
        served = {name: since + rows[name] / self._weight(name) for name, since in self._since.items()}
        difference = max(served.values()) - min(served.values())
        self.longest = max(self.longest, sum(rows.values()) - self._first_rows)
        self.worst = max(self.worst, difference / self._allowed)
        require(difference <= self._allowed, f"rows are not shared by weights: {served}")

    def _weight(self, name: str) -> float:
        return self._host.plan.weights.get(name, 1.0)


def wanting_of(scheduler: DraftScheduler) -> dict[str, bool]:
    """The tenants that have sequences, and whether they would have had more rows in the last step."""
    tenants = scheduler.tenants
    return {name: bool(tenants._wants[number]) for name, number in tenants._numbers.items()}


Lies = Mapping[tuple[str, str], float]
"""By hosts of both sides: until when their connections carried lies, or lost what is not missed.

What was opened before may be wrong for as long as it is open."""


def check_one(target: Target, hosts: Mapping[str, DraftHost], lies: Lies, number: int) -> int:
    """Of one of a target's sequences, if both sides have applied all that the other has said of it: the same
    text, and the same tree. Returns how many trees were compared."""
    sessions = [*target.client._sessions.items()]
    if not sessions:
        return 0
    request_id, session = sessions[number % len(sessions)]
    found = _other_side(target, hosts, lies, request_id, session)
    if found is None:
        return 0
    host, theirs = found
    mirrors, ledger, seq = target.client.mirrors, host.scheduler.ledger, session.seq
    if theirs is None or theirs.epoch != mirrors.epoch[seq] or mirrors.is_out_of_sync[seq]:
        return 0
    if ledger.n[theirs.row] != mirrors.n[seq] or ledger.sent[theirs.row] != mirrors.num_frames[seq]:
        return 0
    require(theirs.tokens == session.tokens.tolist(), "a draft has another text")
    return _check_tree(target, host, seq, theirs.row)


def check_agreement(target: Target, hosts: Mapping[str, DraftHost], lies: Lies) -> int:
    """When nothing is under way: the same of all sequences, and that drafts have those that are open."""
    client, count = target.client, 0
    for request_id, session in client._sessions.items():
        found = _other_side(target, hosts, lies, request_id, session)
        if found is None:
            continue
        host, theirs = found
        epoch = int(client.mirrors.epoch[session.seq])
        require(theirs is not None and theirs.epoch == epoch, "a draft does not have a sequence that is open")
        assert theirs is not None
        require(theirs.is_out_of_sync or theirs.tokens == session.tokens.tolist(), "a draft has another text")
        count += _check_tree(target, host, session.seq, theirs.row)
    _check_closed(target, hosts, lies)
    return count


def _check_closed(target: Target, hosts: Mapping[str, DraftHost], lies: Lies) -> None:
    """Drafts keep nothing that the target has closed, or opened elsewhere since."""
    for replica in target.client.pool.ready:
        host, link = hosts[replica.name], _link_of(replica)
        peer = host.server._peers.get(link.line.peer) if link is not None and link.line is not None else None
        if peer is None or (target.plan.name, host.host) in lies:
            continue
        there = {each.seq for each in target.client._sessions.values() if each.replica is replica}
        require(peer.sessions.keys() <= there, "a draft keeps a sequence that its target has closed")


def _link_of(replica: Replica) -> Any:
    return replica.connection._link if replica.connection is not None else None


def _other_side(
    target: Target, hosts: Mapping[str, DraftHost], lies: Lies, request_id: Hashable, session: ClientSession
) -> tuple[DraftHost, DraftSession | None] | None:
    """The draft that a sequence is open with, and what that has of it. None: nothing can be said of it."""
    if session.replica is None or not session.is_sent or not session.replica.is_ready:
        return None
    host, request = hosts[session.replica.name], target.requests[request_id]  # type: ignore[index]
    if lies.get((target.plan.name, host.host), -1.0) >= request.begun_at:
        return None
    link = _link_of(session.replica)
    peer = host.server._peers.get(link.line.peer) if link is not None and link.line is not None else None
    return host, None if peer is None else peer.sessions.get(session.seq)


def _check_tree(target: Target, host: DraftHost, seq: int, row: int) -> int:
    mirrors = target.client.mirrors
    known = {node: (parent, token) for node, parent, token, _value in mirrors.content(seq)}
    if not known or mirrors.is_out_of_sync[seq]:
        return 0
    theirs = tree_of(host.scheduler, row)
    if not theirs:
        return 0  # It was dropped for lack of KV blocks; what the target knows of it may still be right.
    require(known.items() <= theirs.items(), "a mirror has nodes that the draft's tree has not")
    root = int(mirrors.root[seq])
    below = {root}
    for node, (parent, _token) in sorted(theirs.items()):
        if parent in below:
            below.add(node)
    require(known.keys() == below - {root}, "a mirror lacks nodes of the draft's tree")
    return 1


def tree_of(scheduler: DraftScheduler, row: int) -> dict[int, tuple[int, int]]:
    """By id of a node: its parent and its token."""
    forest = scheduler._steps.forest
    tables, root = forest.tables, int(forest.tables.root_id[row])
    found = dict[int, tuple[int, int]]()
    for family in np.flatnonzero(tables.is_used[row]).tolist():
        parent = root if family == forest.shape.root else int(tables.node_id[row, family])
        first = int(tables.first_id[row, family])
        for rank, token in enumerate(tables.child_token[row, family].tolist()):
            if token >= 0:
                found[first + rank] = parent, token
    return found
