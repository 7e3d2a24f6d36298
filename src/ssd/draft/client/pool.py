"""The client's pool of drafts: finds them, connects, reconnects and replaces them while the target works.

It has a replica for each draft (replica.py): one, where one address was given. The pool outlives its replicas
and their connections. The target reads where it waits anyway. Everything that may take time (connecting,
starting a process, closing) is done by `tend`, which the reconnect thread calls (client.py). `tend` reads
only while the target is idle or the draft has not sent HELLO yet, so Python's lock never delays a launch.

The pool tells the session router (router.py) which drafts are ready, lost, late or removed. It handles STATS
messages itself and passes all others to `take`. Knows replicas, their loads and the router. Does not know
processes (connection.py does), trees or tokens.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from ssd.draft.client.connection import Connection, DraftSource, FixedSources, Sources
from ssd.draft.client.replica import PoolStats, Replica
from ssd.draft.client.router import SessionRouter, score
from ssd.draft.protocol.messages import AnyMessage, Stats

logger = logging.getLogger(__name__)

MOST_DRAFTS = 4
"""Enough that the others have room when one is lost. With each draft of a large pool a target would have
hundreds of connections to read, and so would each draft."""
_IDLE_SECONDS = 0.1
"""A target that has not read for this long is idle."""
_FRAMES_WHILE_IDLE = 8
"""Frames that `tend` reads at a time for an idle target. A target that comes back waits for these at most."""
_TURN_SECONDS = 0.001
"""How long to wait for one of several drafts before reading the others."""
_KEPT_SPANS = 256
"""Draft steps whose times are kept until `take_step_spans` asks for them."""
_MOST_TENANTS = 16
"""Tenant names that are kept apart in the metrics."""


class Reconnector(Protocol):
    """Calls `tend` regularly until it is stopped. Outside tests this is the reconnect thread (client.py)."""

    def stop(self) -> None: ...


class DraftPool:
    def __init__(
        self,
        sources: Sources,
        router: SessionRouter,
        take: Callable[[AnyMessage, Replica], None],
        stats: PoolStats,
        *,
        reconnector: "Callable[[DraftPool], Reconnector]",
        most: int = MOST_DRAFTS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`take` is called with each message but STATS, and the draft that sent it. The lock is held.

        `most`: drafts that are used at a time, of those that the sources name.
        `draw`: the next random number from 0 to 1, for the time until a lost draft is tried again.
        `reconnector`: called once, to start regular calls of `tend`.
        """
        self._sources, self._router, self._take, self.stats = sources, router, take, stats
        self.clock, self._sleep, self._draw, self._reconnector = clock, sleep, draw, reconnector
        self.lock = threading.RLock()
        """Never held while something slow is done: the target may need it at any time."""
        self._tending = threading.Lock()
        self._reconnecting: Reconnector | None = None
        self._most, self._rank = most, repr(draw()).encode()
        """The second one orders drafts in another way in each target."""
        self.replicas: tuple[Replica, ...] = ()
        """Replaced as a whole, since another thread may be reading it."""
        self.replicas = tuple(map(self._replica, self._wanted(sources.current())))
        self._finished: list[Connection | DraftSource | Sources] = []
        """To be closed, which may take a moment."""
        self._last_read = clock()
        self._tenants: set[str] = set()
        self._step_spans: deque[tuple[float, float, int]] = deque(maxlen=_KEPT_SPANS)
        self._watchers: list[Callable[[bool], None]] = []
        self._trial: Sources | None = None
        """Other drafts that take over once one of them is ready."""

    @property
    def ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.is_ready]

    @property
    def is_ready(self) -> bool:
        return any(replica.is_ready for replica in self.replicas)

    @property
    def refusal(self) -> str:
        """Why no draft will ever work with this engine; empty if one may."""
        refusals = [replica.refusal for replica in self.replicas]
        return refusals[0] if refusals and all(refusals) else ""

    @property
    def last_loss(self) -> str:
        """Why there is no connection with any draft; empty while one is still looked for."""
        losses = [replica.last_loss for replica in self.replicas]
        if not losses:
            return self._sources.problem()
        return losses[0] if all(losses) else ""

    def start(self) -> None:
        """Starts the reconnect thread."""
        if self._reconnecting is None:
            self._reconnecting = self._reconnector(self)

    def watch(self, told: Callable[[bool], None]) -> None:
        """Calls `told` when drafting becomes possible or impossible, also while the target is idle. The lock
        is held."""
        self._watchers.append(told)

    def take_step_spans(self) -> list[tuple[float, float, int]]:
        """Start, end and rows of the drafts' latest steps, since the last call."""
        with self.lock:
            spans = list(self._step_spans)
            self._step_spans.clear()
            return spans

    def flush(self) -> None:
        """Opens sessions that wait, and sends what has been posted since the last time."""
        self._router.open_waiting()
        for replica in self.replicas:
            replica.flush()

    def read(self, timeout: float = 0.0) -> None:
        """Takes in what has arrived; waits at most `timeout` seconds for it."""
        with self.lock:
            self._last_read = self.clock()
            replicas = self.replicas
            if len(replicas) == 1:
                self._read(replicas[0], timeout)
            else:
                self._read_all(replicas, timeout)
            if self._router.has_waiting:
                self.flush()

    def wait_until_ready(self, timeout: float) -> None:
        """Waits until a draft is ready, all have refused or are lost, or the time is over."""
        deadline = self.clock() + timeout
        while not self.is_ready and not self.refusal and not self.last_loss and self.clock() < deadline:
            self.tend()
            if all(replica.connection is None for replica in self.replicas):
                self._sleep(0.01)
            self.read(0.1)

    def replace(self, sources: Sources) -> None:
        """Other drafts take over once one of them is ready; until then the present ones go on."""
        made = [(source, source.connect()) for source in sources.current()]
        with self._tending:
            with self.lock:
                self._end_trial()
                self._trial = sources
                on_trial = [
                    self._replica(source, connection, is_on_trial=True) for source, connection in made
                ]
                self.replicas = (*self.replicas, *on_trial)
            self._close_finished()

    def tend(self) -> None:
        """Connects, moves sessions away from stalled drafts, and reads while the target is idle."""
        if not self._tending.acquire(blocking=False):
            return
        try:
            self._close_finished()
            self._follow_sources()
            for replica in self.replicas:
                self._tend(replica)
            with self.lock:
                self._router.renew_questions()
                if self._router.has_waiting:
                    self.flush()
        finally:
            self._tending.release()

    def lose(self, reason: str) -> None:
        """Drops all connections; the reconnect thread makes new ones."""
        with self.lock:
            for replica in self.replicas:
                if replica.connection is not None:
                    replica.connection.lose(reason)
                    self._drop(replica)

    def close(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.stop()
        with self._tending, self.lock:
            self._end_trial()
            self._finish(self.replicas)
            self._finished.append(self._sources)
            self._sources = FixedSources()
            self._close_finished()

    def abandon(self) -> None:
        """In a forked child: sockets, processes and thread belong to the parent."""
        self.lock, self._tending, self._reconnecting = threading.RLock(), threading.Lock(), None
        replicas, self.replicas, self._sources, self._finished = self.replicas, (), FixedSources(), []
        for replica in replicas:
            replica.connection = None
            self._router.lost(replica)

    def _replica(
        self, source: DraftSource, connection: Connection | None = None, *, is_on_trial: bool = False
    ) -> Replica:
        return Replica(source, self.clock, connection, is_on_trial=is_on_trial, draw=self._draw)

    def _read_all(self, replicas: Sequence[Replica], timeout: float) -> None:
        """Reads each in turn until one of them has sent something."""
        deadline = self.clock() + timeout
        while True:
            num_heard = sum([self._read(each, 0.0) for each in replicas])
            left = deadline - self.clock()
            if num_heard or left <= 0:
                return
            waiting = next((each for each in replicas if each.connection is not None), None)
            if waiting is None:
                return
            if self._read(waiting, min(left, _TURN_SECONDS)):
                deadline = self.clock()

    def _read(self, replica: Replica, timeout: float, **limits: int) -> int:
        """Returns the number of messages."""
        connection, num_heard = replica.connection, 0
        if connection is None:
            return 0
        was_ready = replica.is_ready
        try:
            for message in connection.receive(timeout, **limits):
                num_heard += 1
                replica.note_received()
                if isinstance(message, Stats):
                    self._note_stats(message, replica)
                else:
                    self._take(message, replica)
        except Exception as error:
            # A bad message costs at most this connection.
            logger.exception("a message of the draft could not be processed")
            connection.lose(f"{type(error).__name__}: {error}")
        if replica.is_over:
            self._drop(replica)
        elif replica.is_ready and not was_ready:
            self._greeted(replica, connection)
        return num_heard

    def _greeted(self, replica: Replica, connection: Connection) -> None:
        is_only_one = len(self.ready) == 1
        self.stats.num_connects += 1
        replica.note_hello()
        self.stats.num_ready = len(self.ready)
        logger.info("speculation is on, with the draft %s", connection.name)
        self._router.greeted(replica)
        if replica.is_on_trial:
            self._take_over()
        self.flush()
        if is_only_one:
            self._tell_watchers(is_there=True)

    def _drop(self, replica: Replica) -> None:
        had_greeted, before = replica.was_ready, replica.last_loss
        connection = replica.drop()
        if connection is None:
            return
        self._finished.append(connection)
        if replica.is_on_trial:
            logger.warning("the new draft was lost before it was ready: %s", connection.reason)
            self._finish([replica])
            if not any(each.is_on_trial for each in self.replicas):
                self._end_trial()
            return
        self.stats.num_ready = len(self.ready)
        is_off = not self.is_ready
        # Log a failed first attempt once.
        if had_greeted or connection.reason != before:
            logger.warning("%s: %s", "speculation is off" if is_off else "a draft is lost", connection.reason)
        self.stats.num_losses += had_greeted
        self._router.lost(replica)
        self._note_loads()
        self.flush()
        if is_off:
            self._tell_watchers(is_there=False)

    def _note_stats(self, stats: Stats, replica: Replica) -> None:
        last = replica.stats
        replica.note_stats(stats)
        self._note_loads()
        self.stats.tenant = self._known_name(stats.tenant)
        self._router.bring_back(replica)
        # The first report covers work from before we connected: it only sets the base.
        if last is not None:
            self.stats.note_work(last, stats)
            self._step_spans.extend(stats.step_spans)

    def _note_loads(self) -> None:
        self.stats.note_loads([each.stats for each in self.replicas if each.stats is not None])

    def _known_name(self, tenant: str) -> str:
        """The name, or "other" after too many: a faulty draft may invent names, and metrics keep them."""
        if len(self._tenants) < _MOST_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else "other"

    def _tell_watchers(self, *, is_there: bool) -> None:
        for told in self._watchers:
            told(is_there)

    def _tend(self, replica: Replica) -> None:
        if replica.connection is None:
            self._note_end(replica)
            connection = replica.new_connection()
            with self.lock:
                if replica in self.replicas:
                    replica.connection = connection
                elif connection is not None:
                    self._finished.append(connection)  # The pool dropped the replica meanwhile.
            return
        broken = replica.source.is_broken()
        with self.lock:
            broken = broken or replica.overfull()
            if broken and replica.connection is not None:
                replica.connection.lose(broken)
            if broken or not replica.is_ready or self.clock() - self._last_read > _IDLE_SECONDS:
                self._read(replica, 0.0, most=_FRAMES_WHILE_IDLE)
            if replica.num_own_sequences and len(self.replicas) > 1:
                self._relieve(replica)

    def _note_end(self, replica: Replica) -> None:
        """A process that ends closes its socket first; its exit code is known a moment later."""
        reason = replica.source.is_broken()
        if reason and reason not in replica.last_loss:
            logger.warning("the draft was lost for this reason: %s", reason)
            replica.last_loss = reason

    def _relieve(self, replica: Replica) -> None:
        """Moves sessions from a draft that is stalled or late to one that is not, if there is one."""
        if replica.is_stalled and self._has_another(replica):
            if self._router.move_all(replica):
                logger.warning("a draft has stalled: its sequences go to another")
        elif replica.drains:
            # One in each call, before the draft ends: while one prompt is read the others keep their hits.
            self._router.move_one(replica)
        elif replica.is_late and any(each.is_prompt for each in self.ready):
            replica.note_moved_one()
            self._router.move_one(replica)
        self.flush()

    def _has_another(self, replica: Replica) -> bool:
        return any(each is not replica and not each.is_stalled for each in self.ready)

    def _wanted(self, current: Sequence[DraftSource]) -> list[DraftSource]:
        """The drafts to use of those that the sources name: the first few in this target's order, and one
        more for each of them that is lost or refuses."""
        if len(current) <= self._most:
            return list(current)
        lost = [each.source for each in self.replicas if each.last_loss and not each.is_ready]
        wanted, left = list[DraftSource](), self._most
        for source in sorted(current, key=lambda each: score(each.name, self._rank), reverse=True):
            if left:
                wanted.append(source)
                left -= source not in lost
        return wanted

    def _follow_sources(self) -> None:
        """Adds drafts that the sources name now. Removes a draft that they no longer name, or that is not
        wanted any more: at once if it is not ready, otherwise when another draft is ready."""
        current = self._sources.current()
        wanted = self._wanted(current)
        on_trial = self._trial.current() if self._trial is not None else ()
        with self.lock:
            known = [replica.source for replica in self.replicas]
            new = [self._replica(source) for source in wanted if source not in known]
            new += [self._replica(each, is_on_trial=True) for each in on_trial if each not in known]
            self.replicas = (*self.replicas, *new)
            for replica in self.replicas:
                # What stands in for a draft that was lost goes once it has no sequence.
                is_used = replica.source in (current if replica.num_own_sequences else wanted)
                is_named = replica.is_on_trial or is_used
                if not is_named and (not replica.is_ready or self._has_another(replica)):
                    self._leave(replica)

    def _take_over(self) -> None:
        """The drafts on trial become the pool's own, and the earlier ones are left."""
        before = [replica for replica in self.replicas if not replica.is_on_trial]
        self._finished.append(self._sources)
        if self._trial is not None:
            self._sources, self._trial = self._trial, None
        for replica in self.replicas:
            replica.is_on_trial = False
        for replica in before:
            self._leave(replica)

    def _leave(self, replica: Replica) -> None:
        self._router.leave(replica)
        self.flush()
        self._finish([replica])

    def _end_trial(self) -> None:
        self._finish([replica for replica in self.replicas if replica.is_on_trial])
        if self._trial is not None:
            self._finished.append(self._trial)
            self._trial = None

    def _finish(self, replicas: Sequence[Replica]) -> None:
        """Removes them from the pool; their sockets and processes are closed later."""
        self.replicas = tuple(each for each in self.replicas if each not in replicas)
        for replica in replicas:
            connection, replica.connection = replica.connection, None
            self._finished += [replica.source] if connection is None else [connection, replica.source]
        self.stats.num_ready = len(self.ready)

    def _close_finished(self) -> None:
        while self._finished:
            self._finished.pop(0).close()
