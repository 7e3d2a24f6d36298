"""The target's end of the link to its drafts: a mirror of the draft's tree for each sequence.

Only `wait` waits, with a timeout. When a draft is lost, so are its mirrors; when the next draft is
ready, every sequence is opened again from its tokens. `ReconnectThread` finds that next draft while the
target computes or is idle.

Knows the protocol, the mirrors, tokens, threads and forks. Does not know the target or an engine: a request
id is anything hashable, and sampling parameters come as they are sent. On the wire and in the mirrors a
sequence has a small number, its `seq`.
"""

import logging
import os
import random
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, compress
from typing import TypeVar

import numpy as np

from ssd.draft.client.connection import Sources
from ssd.draft.client.mirrors import Knowledge, Mirrors
from ssd.draft.client.pool import MOST_DRAFTS, DraftPool, Reconnector
from ssd.draft.client.proposals import (
    NO_GRAMMARS,
    DraftedTokens,
    GrammarViews,
    TreeLimits,
    known_paths,
    offer,
)
from ssd.draft.client.replica import PoolStats, Replica
from ssd.draft.client.router import (
    ROUNDS_BETWEEN_RESYNCS,
    UNKNOWN_TOKENS,
    ClientSession,
    SessionRouter,
    largest,
)
from ssd.draft.protocol.messages import (
    AnyMessage,
    Close,
    Nodes,
    OfferOpen,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
)

RequestId = TypeVar("RequestId", bound=Hashable)

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
"""Between two calls of `tend`."""

_open_pools: "weakref.WeakSet[DraftPool]" = weakref.WeakSet()


class ReconnectThread:
    """Calls a pool's `tend` until it is stopped, until the pool is gone, or until the main thread has ended.

    In the last case it closes the pool. A forked child has neither this thread nor connections.
    """

    def __init__(self, pool: DraftPool) -> None:
        self._is_over = threading.Event()
        _open_pools.add(pool)
        # A weak reference, so that a pool that nobody uses can be collected.
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(pool), self._is_over), name="ssd-draft-reconnect"
        )
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _run(reference: "weakref.ref[DraftPool]", is_over: threading.Event) -> None:
    while not is_over.wait(_TICK_SECONDS):
        pool = reference()
        if pool is None:
            return
        try:
            if not threading.main_thread().is_alive():
                pool.close()
                return
            pool.tend()
        except Exception as error:
            logger.exception("reconnecting failed; all connections are dropped")
            pool.lose(f"{type(error).__name__}: {error}")
        del pool


def _fall_silent() -> None:
    for each in list(_open_pools):
        each.abandon()


os.register_at_fork(after_in_child=_fall_silent)


class DraftClient:
    def __init__(
        self,
        sources: Sources,
        *,
        lookahead: int,
        num_sequences: int = 0,
        pool_size: int = MOST_DRAFTS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
        reconnector: Callable[[DraftPool], Reconnector] = ReconnectThread,
    ) -> None:
        """`num_sequences`: mirrors that are allocated at the start; more are added when needed, which takes
        time. `pool_size`: drafts that are used at a time, of those that the sources name.

        `draw`: the next random number from 0 to 1, for the time until a lost draft is tried again.
        `reconnector`: starts reconnecting lost drafts; by default in a thread.
        """
        self.stats = PoolStats()
        self._mirrors = Mirrors(num_sequences)
        self._router = SessionRouter(self._mirrors, self.stats, lookahead, clock)
        self.pool = DraftPool(
            sources,
            self._router,
            self._take,
            self.stats,
            most=pool_size,
            clock=clock,
            sleep=sleep,
            draw=draw,
            reconnector=reconnector,
        )
        self._sessions: dict[Hashable, ClientSession] = {}

    @property
    def is_ready(self) -> bool:
        return self.pool.is_ready

    @property
    def is_paused(self) -> bool:
        """Drafting is paused: no session is open."""
        return self._router.is_paused

    @property
    def mirrors(self) -> Mirrors:
        """For targets that choose tokens from them. Requires the pool's lock."""
        return self._mirrors

    def __contains__(self, request_id: Hashable) -> bool:
        return request_id in self._sessions

    def unknown_among(self, request_ids: Sequence[RequestId]) -> list[RequestId]:
        """The request ids that have no session."""
        session = self._sessions
        return [request_id for request_id in request_ids if request_id not in session]

    def follow(
        self,
        request_id: Hashable,
        tokens: Iterable[int],
        num_prompt: int,
        sampling: Sampling,
        max_len: int,
        *,
        draft_name: str = "",
    ) -> None:
        """Opens a session for a sequence; a session that has this id is replaced.

        `draft_name`: prefer drafts of this name. If it is empty or no draft has it: any draft.
        """
        with self.pool.lock:
            self.forget(request_id)
            seq = self._router.free_seq()
            session = ClientSession(
                seq, array("i", tokens), num_prompt, sampling, max_len, draft_name=draft_name
            )
            self._sessions[request_id] = session
            self._router.add(session)
            self.pool.flush()

    def forget(self, request_id: Hashable) -> None:
        with self.pool.lock:
            session = self._sessions.pop(request_id, None)
            if session is not None:
                self._router.remove(session)
                self.pool.flush()

    def pause(self) -> None:
        """Closes all sessions at the drafts, so that they compute nothing."""
        with self.pool.lock:
            self._router.pause()
            self.pool.flush()

    def resume(self) -> None:
        with self.pool.lock:
            self._router.resume()
            self.pool.flush()

    def text_of(self, request_id: Hashable) -> "tuple[array[int], int]":
        """The text so far, and how many drafted tokens may follow; empty where there is no session."""
        session = self._sessions.get(request_id)
        if session is None:
            return array("i"), 0
        count = len(session.forced)
        return session.tokens[:-count] if count else session.tokens, session.room

    def outcomes(self, outcomes: Sequence[tuple[Hashable, Sequence[int]]]) -> list[Knowledge]:
        """Sends the outcomes of verifications; returns what the mirrors know about what follows each."""
        found = [Knowledge.UNHEARD] * len(outcomes)
        with self.pool.lock:
            due = list[tuple[int, ClientSession, Sequence[int]]]()
            for place, (request_id, tokens) in enumerate(outcomes):
                session = self._sessions.get(request_id)
                if session is None:
                    continue
                try:
                    new = session.take_decided(tokens)
                except OverflowError:  # It does not fit into the array: no model has such a token.
                    self.forget(request_id)
                    continue
                if new is None:
                    self._router.open(session)
                elif new and session.is_open:
                    due.append((place, session, new))
                elif session.is_open:
                    [found[place]] = self._mirrors.knowledge(np.array([session.seq]))
            # Far faster than asking for each session.
            if not self._all_know(tokens for _, _, tokens in due):
                due = [each for each in due if self._may_send(*each[1:])]
            if due:
                self._router.lookahead_estimator.note_round()
                places, sessions, texts = zip(*due, strict=True)
                for place, knowledge in zip(places, self._advance(sessions, texts), strict=True):
                    found[place] = knowledge
            self.pool.flush()
        return found

    def send_forced(self, certain: Sequence[tuple[Hashable, Sequence[int]]]) -> None:
        """Sends forced tokens before they are verified, so that drafts can already continue after them."""
        with self.pool.lock:
            told = list[tuple[ClientSession, Sequence[int]]]()
            for request_id, tokens in certain:
                session = self._sessions.get(request_id)
                if session is None or not session.is_open:
                    continue
                new = tokens[len(session.forced) :]
                if new and self._may_send(session, new):
                    session.tokens.extend(new)
                    session.forced = (*session.forced, *new)
                    told.append((session, new))
            if told:
                self._advance(*zip(*told, strict=True))
                self.pool.flush()

    def paths(
        self,
        request_ids: Sequence[Hashable],
        limit: int,
        grammars: GrammarViews = NO_GRAMMARS,
        *,
        trees: TreeLimits | None = None,
    ) -> list[DraftedTokens]:
        """The most likely known continuation of each sequence, as its grammar allows.

        `trees`: several paths at once, within these bounds.
        """
        with self.pool.lock:
            asked = [*map(self._sessions.get, request_ids)]
            if grammars or trees is not None:
                pairs = zip(asked, map(grammars.get, request_ids), strict=True)
                return [offer(self._mirrors, session, limit, grammar, trees) for session, grammar in pairs]
            return known_paths(self._mirrors, asked, limit)

    def seqs(self, request_ids: Sequence[Hashable]) -> list[int]:
        """The `seq` of each sequence; -1 if no draft has it. Requires the pool's lock."""
        asked = map(self._sessions.get, request_ids)
        return [each.seq if each is not None and each.is_open else -1 for each in asked]

    def wait(self, request_ids: Sequence[Hashable], timeout: float) -> None:
        """Waits until a path is known for one of the sequences, at most `timeout` seconds."""
        clock = self.pool.clock
        deadline = clock() + timeout
        while self.is_ready and not self._is_any_known(request_ids):
            left = deadline - clock()
            if left <= 0:
                return
            self.pool.read(left)

    def _is_any_known(self, request_ids: Sequence[Hashable]) -> bool:
        with self.pool.lock:
            asked = map(self._sessions.get, request_ids)
            known = [each for each in asked if each is not None and each.is_open]
            return any(self._mirrors.path(each.seq, 1)[0] for each in known)

    def check_integrity(self) -> None:
        with self.pool.lock:
            self._mirrors.check_integrity()
            self._router.check_integrity()

    def _take(self, message: AnyMessage, replica: Replica) -> None:
        """Called by the pool, with its lock held."""
        match message:
            case Nodes():
                self.stats.num_frames += 1
                replica.note_nodes(message.columns())
                self._mirrors.take(message, draft=replica.number)
            case OfferOpen():
                session = self._router.current(replica, message.seq, message.epoch)
                if session is not None:
                    self._router.offered(session)
            case Resync():
                session = self._router.current(replica, message.seq, message.epoch)
                # Bounded, because a faulty draft may ask again and again, and each answer is the whole text.
                if session is None or not session.is_open:
                    return
                if session.may_reopen(int(self._mirrors.n[message.seq])):
                    self.stats.num_resyncs += 1
                    self._router.open(session)
            case Close():
                session = self._router.current(replica, message.seq, message.epoch)
                if session is not None:
                    self._router.declined_by(replica, session, message)

    def _advance(self, sessions: Sequence[ClientSession], texts: Sequence[Sequence[int]]) -> list[Knowledge]:
        mirrors, seqs = self._mirrors, np.array([each.seq for each in sessions])
        counts, tokens = np.array([*map(len, texts)]), np.array([*chain.from_iterable(texts)], np.int32)
        knowledge = mirrors.advance(seqs, counts, tokens)
        heads = np.array((seqs, mirrors.epoch[seqs], mirrors.n[seqs], mirrors.num_frames[seqs], counts))
        replicas = [each.replica for each in sessions]
        for replica in dict.fromkeys(replicas):
            if replica is not None:
                mine = np.array([each is replica for each in replicas])
                said = OutcomeHeads(*heads[:, mine])
                replica.note_sent()
                replica.note_outcome_sent(int(said.seq[0]), int(said.n[0]))
                _note_lateness(replica, [*compress(knowledge, mine.tolist())])
                replica.post(Outcome.of(said, tokens[mine.repeat(counts)]))
        if mirrors.is_out_of_sync[seqs].any():
            for session in sessions:
                self._resync_if_out_of_sync(session)
        return knowledge

    def _resync_if_out_of_sync(self, session: ClientSession) -> None:
        seq, n = session.seq, int(self._mirrors.n[session.seq])
        is_due = self._mirrors.is_out_of_sync[seq] and n - session.asked_at >= ROUNDS_BETWEEN_RESYNCS
        if is_due and session.replica is not None:
            session.asked_at = n
            self.stats.num_resyncs += 1
            session.replica.post(Resync(seq, int(self._mirrors.epoch[seq])))

    def _all_know(self, texts: Iterable[Sequence[int]]) -> bool:
        """Whether every draft knows all these tokens."""
        tokens = [*chain.from_iterable(texts)]
        fewest = min((each.vocab_size for each in self.pool.replicas), default=0)
        return bool(tokens) and largest(tokens) < fewest

    def _may_send(self, session: ClientSession, tokens: Sequence[int]) -> bool:
        """Whether its draft knows all the tokens. If not, the session is opened with another draft."""
        replica = session.replica
        if replica is None or largest(tokens) < replica.vocab_size:
            return replica is not None
        self._router.decline(session, replica, UNKNOWN_TOKENS)
        self._router.open(session)
        return False


def _note_lateness(replica: Replica, knowledge: Sequence[Knowledge]) -> None:
    """Counts hits, and rounds for which the draft was late."""
    num_late = knowledge.count(Knowledge.LATE)
    if num_late or Knowledge.HIT in knowledge:
        replica.note_rounds(num_late, num_late + knowledge.count(Knowledge.HIT))
