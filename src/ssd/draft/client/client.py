"""The target's end of the link to its drafts: a mirror of the draft's tree for each sequence.

Only `wait` waits, with a timeout. When a draft is lost, so are its mirrors; when the next draft is
ready, every sequence is opened again from its tokens. Knows the protocol, the mirrors and tokens. Does not
know the target or an engine: sequences have any hashable key, and sampling parameters come as they are
sent.
"""

import random
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np

from ssd.draft.client.branching import first_nodes, parents_of, simplified
from ssd.draft.client.mirrors import Distribution, Knowledge, Mirrors
from ssd.draft.client.pool import DraftPool, PoolStats
from ssd.draft.client.proposals import Bounds, GrammarView, likely_nodes, num_certain, path_under
from ssd.draft.client.replica import Replica, Sources
from ssd.draft.client.router import SessionRouter
from ssd.draft.client.session import ROUNDS_BETWEEN_RESYNCS, UNKNOWN_TOKENS, ClientSession, largest
from ssd.draft.protocol.messages import (
    MAX_COUNT,
    AnyMessage,
    Close,
    Nodes,
    Outcome,
    OutcomeHeads,
    Resync,
    Sampling,
    Stats,
)

Key = TypeVar("Key", bound=Hashable)

_KEPT_SPANS = 256
_MOST_TENANTS = 16
"""Tenant names that are kept apart in the metrics."""


class Path(msgspec.Struct, frozen=True):
    """A speculation: tokens, and for each the probability that it and all before it are accepted."""

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()
    drawn: Sequence[Distribution] | None = None
    """Under ratio acceptance: the distribution that each token was drawn from."""
    parents: Sequence[int] | None = None
    """Of each token, the index of its parent, or -1 for the end of the text. None: a chain."""
    num_certain: int = 0
    """How many of the first tokens are forced by the request's grammar."""

    def cut(self, length: int) -> "Path":
        """Keeps the first `length` tokens. That works for a tree too: parents come before their children."""
        if length == len(self.tokens):
            return self
        drawn = None if self.drawn is None else self.drawn[:length]
        parents = None if self.parents is None else simplified(self.parents[:length])
        certain = min(length, self.num_certain)
        return Path(self.tokens[:length], self.chances[:length], drawn, parents, certain)

    def behind(self, tokens: Sequence[int]) -> "Path":
        """The path that starts with these forced tokens and goes on with this one."""
        if not tokens:
            return self
        count = len(tokens)
        parents = parents_of(self.parents, len(self.tokens))
        moved = [*range(-1, count - 1), *(count + each for each in parents)]
        chances = [*[1.0] * count, *self.chances]
        certain = count + self.num_certain
        return Path([*tokens, *self.tokens], chances, None, simplified(moved), certain)

    def chain(self) -> "Path":
        """The likeliest path of a tree."""
        if self.parents is None:
            return self
        nodes = first_nodes(self.parents)
        tokens, chances = [self.tokens[each] for each in nodes], [self.chances[each] for each in nodes]
        return Path(tokens, chances, num_certain=self.num_certain)


_NO_PATH = Path()
GrammarViews = Mapping[Any, GrammarView]
"""Grammar states of the texts that have a grammar."""
NO_GRAMMARS: GrammarViews = {}


class DraftClient:
    def __init__(
        self,
        sources: Sources,
        *,
        lookahead: int,
        num_sequences: int = 0,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`num_sequences`: rows that are allocated at the start; more are added when needed, which takes
        time.

        `draw`: the next random number from 0 to 1, for the time until a lost draft is tried again.
        """
        self.pool = DraftPool(sources, self, clock, draw)
        self._mirrors = Mirrors(num_sequences)
        self._router = SessionRouter(self.pool, self._mirrors, lookahead, clock)
        self._sessions: dict[Hashable, ClientSession] = {}
        self._tenants: set[str] = set()
        self._step_spans: deque[tuple[float, float, int]] = deque(maxlen=_KEPT_SPANS)

    @property
    def stats(self) -> PoolStats:
        return self.pool.stats

    @property
    def is_ready(self) -> bool:
        return self.pool.is_ready

    @property
    def is_paused(self) -> bool:
        """Drafting is paused: no session is open."""
        return self._router.is_paused

    def __contains__(self, key: Hashable) -> bool:
        return key in self._sessions

    def unknown_among(self, keys: Sequence[Key]) -> list[Key]:
        """The keys that have no session."""
        session = self._sessions
        return [key for key in keys if key not in session]

    def follow(
        self,
        key: Hashable,
        tokens: Iterable[int],
        num_prompt: int,
        sampling: Sampling,
        max_len: int,
        *,
        draft_name: str = "",
    ) -> None:
        """Opens a session for a sequence; a session that has this key is replaced.

        `draft_name`: prefer drafts of this name. If it is empty or no draft has it: any draft.
        """
        with self.pool.lock:
            self.forget(key)
            row = self._router.free_row()
            session = ClientSession(
                row, array("i", tokens), num_prompt, sampling, max_len, draft_name=draft_name
            )
            self._sessions[key] = session
            self._router.add(session)
            self.pool.flush()

    def forget(self, key: Hashable) -> None:
        with self.pool.lock:
            session = self._sessions.pop(key, None)
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

    def text_of(self, key: Hashable) -> "tuple[array[int], int]":
        """The text so far, and how many drafted tokens may follow; empty where there is no session."""
        session = self._sessions.get(key)
        if session is None:
            return array("i"), 0
        count = len(session.forced)
        return session.tokens[:-count] if count else session.tokens, session.room

    def outcomes(self, outcomes: Sequence[tuple[Hashable, Sequence[int]]]) -> list[Knowledge]:
        """Sends the outcomes of verifications; returns what the mirrors know about what follows each."""
        found = [Knowledge.UNHEARD] * len(outcomes)
        with self.pool.lock:
            told = list[tuple[int, ClientSession, Sequence[int]]]()
            for place, (key, tokens) in enumerate(outcomes):
                session = self._sessions.get(key)
                if session is None:
                    continue
                try:
                    new = session.take_decided(tokens)
                except OverflowError:  # It does not fit into the array: no model has such a token.
                    self.forget(key)
                    continue
                if new is None:
                    self._router.open(session)
                elif not new:
                    found[place] = self._mirrors.knowledge(session.row) if session.is_open else found[place]
                elif session.is_open and self._may_send(session, new):
                    told.append((place, session, new))
            if told:
                self._router.distance.note_round()
                places, sequences, texts = zip(*told, strict=True)
                for place, knowledge in zip(places, self._advance(sequences, texts), strict=True):
                    found[place] = knowledge
            self.pool.flush()
        return found

    def send_forced(self, certain: Sequence[tuple[Hashable, Sequence[int]]]) -> None:
        """Sends forced tokens before they are verified, so that drafts can already continue after them."""
        with self.pool.lock:
            told = list[tuple[ClientSession, Sequence[int]]]()
            for key, tokens in certain:
                session = self._sessions.get(key)
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
        keys: Sequence[Hashable],
        limit: int,
        grammars: GrammarViews = NO_GRAMMARS,
        *,
        trees: Bounds | None = None,
    ) -> list[Path]:
        """The most likely known continuation of each sequence, as its grammar allows.

        `trees`: several paths at once, within these bounds.
        """
        with self.pool.lock:
            asked = [*map(self._sessions.get, keys)]
            if grammars or trees is not None:
                pairs = zip(asked, map(grammars.get, keys), strict=True)
                return [self._offer(session, limit, grammar, trees) for session, grammar in pairs]
            return [self._path(session, limit) for session in asked]

    def _offer(
        self, session: ClientSession | None, limit: int, grammar: GrammarView | None, trees: Bounds | None
    ) -> Path:
        """Its path or tree. Under ratio acceptance its plain path: filtering drawn tokens would bias it."""
        if session is None or session.sampling.ratio or (grammar is None and trees is None):
            return self._path(session, limit)
        row, forced = session.row, session.forced[: min(limit, session.room)]
        limit = min(limit, session.room) - len(forced)
        for token in forced:
            grammar = None if grammar is None else grammar.after(token)
        node = self._mirrors.end_of(row) if session.is_open else None
        if trees is not None:
            bounds = replace(trees, depth=limit)
            tokens, chances, parents = likely_nodes(self._mirrors, row, node, grammar, bounds)
        else:
            found = ([], []) if grammar is None else path_under(self._mirrors, row, node, limit, grammar)
            (tokens, chances), parents = found, [*range(-1, len(found[0]) - 1)]
        certain = 0 if grammar is None else num_certain(chances)
        return Path(tokens, chances, None, simplified(parents), certain).behind(forced)

    def _path(self, session: ClientSession | None, limit: int) -> Path:
        # The tree starts after the forced tokens, and here there is no grammar to propose those by.
        if session is None or not session.is_open or session.forced:
            return _NO_PATH
        tokens, chances = self._mirrors.path(session.row, min(limit, session.room))
        if not tokens:
            return _NO_PATH
        if not self._mirrors.has_drawn(session.row):
            return Path(tokens, chances)
        # Cut before the first token whose distribution is not known.
        drawn = self._mirrors.drawn_along(session.row, tokens)
        return Path(tokens[: len(drawn)], chances[: len(drawn)], drawn)

    def wait(self, keys: Sequence[Hashable], timeout: float) -> None:
        """Waits until a path is known for one of the sequences, at most `timeout` seconds."""
        clock = self.pool.clock
        deadline = clock() + timeout
        while self.is_ready and not self._is_any_known(keys):
            left = deadline - clock()
            if left <= 0:
                return
            self.pool.read(left)

    def _is_any_known(self, keys: Sequence[Hashable]) -> bool:
        with self.pool.lock:
            asked = [each for key in keys if (each := self._sessions.get(key)) is not None and each.is_open]
            return any(self._mirrors.path(each.row, 1)[0] for each in asked)

    def take_step_spans(self) -> list[tuple[float, float, int]]:
        """Start, end and rows of the draft's latest steps, since the last call."""
        with self.pool.lock:
            spans = list(self._step_spans)
            self._step_spans.clear()
            return spans

    def check_integrity(self) -> None:
        with self.pool.lock:
            self._mirrors.check_integrity()
            self._router.check_integrity()

    # Called by the pool, with its lock held.

    def greeted(self, replica: Replica) -> None:
        self._router.open_all()

    def lost(self, replica: Replica) -> None:
        self._router.lost(replica)
        self._note_loads()

    def leave(self, replica: Replica) -> None:
        self._router.leave(replica)

    def move_one(self, replica: Replica) -> None:
        self._router.move_one(replica)

    def move_all(self, replica: Replica) -> int:
        return self._router.move_all(replica)

    def take(self, message: AnyMessage, replica: Replica) -> None:
        match message:
            case Nodes():
                self.stats.num_frames += 1
                replica.note_nodes(message.columns())
                self._mirrors.take(message)
            case Resync():
                session = self._router.current(message.seq, message.epoch)
                # Bounded, because a faulty draft may ask again and again, and each answer is the whole text.
                if session is not None and session.may_reopen(int(self._mirrors.n[message.seq])):
                    self.stats.num_resyncs += 1
                    self._router.open(session)
                    self.pool.flush()
            case Close():
                session = self._router.current(message.seq, message.epoch)
                if session is not None:
                    self._router.declined_by(replica, session, message)
                    self.pool.flush()
            case Stats():
                self._note_stats(message, replica)

    def _advance(self, sequences: Sequence[ClientSession], texts: Sequence[Sequence[int]]) -> list[Knowledge]:
        mirrors, rows = self._mirrors, [each.row for each in sequences]
        knowledge = mirrors.advance(rows, texts)
        named, counts = np.array(rows), np.array([len(tokens) for tokens in texts])
        heads = OutcomeHeads(named, mirrors.epoch[named], mirrors.n[named], mirrors.num_frames[named], counts)
        for replica, mine in _by_replica(sequences):
            replica.note_sent()
            first = rows[0 if mine is None else mine[0]]
            replica.note_outcome_sent(first, int(mirrors.n[first]))
            _note_lateness(replica, knowledge if mine is None else [knowledge[place] for place in mine])
            said = heads if mine is None else OutcomeHeads(*(column[mine] for column in heads))
            spoken = texts if mine is None else [texts[place] for place in mine]
            replica.post(Outcome.of(said, [*chain.from_iterable(spoken)]))
        if mirrors.is_out_of_sync[named].any():
            for session in sequences:
                self._resync_if_out_of_sync(session)
        return knowledge

    def _resync_if_out_of_sync(self, session: ClientSession) -> None:
        row, n = session.row, int(self._mirrors.n[session.row])
        is_due = self._mirrors.is_out_of_sync[row] and n - session.asked_at >= ROUNDS_BETWEEN_RESYNCS
        if is_due and session.replica is not None:
            session.asked_at = n
            self.stats.num_resyncs += 1
            session.replica.post(Resync(row, int(self._mirrors.epoch[row])))

    def _may_send(self, session: ClientSession, tokens: Sequence[int]) -> bool:
        """Whether its draft knows all the tokens. If not, the session is opened with another draft."""
        replica = session.replica
        if replica is None or largest(tokens) < replica.vocab_size:
            return replica is not None
        self._router.decline(session, replica, UNKNOWN_TOKENS)
        self._router.open(session)
        return False

    def _note_stats(self, stats: Stats, replica: Replica) -> None:
        last = replica.stats
        replica.note_stats(stats)
        self._note_loads()
        ours = self.stats
        ours.tenant = self._known_name(stats.tenant)
        if replica.has_room:
            self._router.bring_back(replica)
            self.pool.flush()
        if last is None:
            return  # The first report covers work from before we connected: it only sets the base.
        rows = max(0, stats.num_own_rows - last.num_own_rows)
        ours.num_own_rows = min(ours.num_own_rows + rows, MAX_COUNT)
        steps, seconds = stats.num_steps - last.num_steps, max(0.0, stats.seconds - last.seconds)
        if steps > 0:
            ours.num_steps = min(ours.num_steps + steps, MAX_COUNT)
            ours.draft_seconds += seconds
            ours.step_seconds = replica.step_seconds = seconds / steps
        self._step_spans.extend(stats.step_spans)

    def _note_loads(self) -> None:
        announced = [each.stats for each in self.pool.replicas if each.stats is not None]
        self.stats.num_sequences = sum(each.num_sequences for each in announced)
        self.stats.kv_usage = max((each.kv_usage for each in announced), default=0.0)

    def _known_name(self, tenant: str) -> str:
        """The name, or "other" after too many: a faulty draft may invent names, and metrics keep them."""
        if len(self._tenants) < _MOST_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else "other"


def _note_lateness(replica: Replica, knowledge: Sequence[Knowledge]) -> None:
    """Counts hits, and rounds for which the draft was late."""
    num_late = knowledge.count(Knowledge.LATE)
    if num_late or Knowledge.HIT in knowledge:
        replica.note_rounds(num_late, num_late + knowledge.count(Knowledge.HIT))


def _by_replica(sequences: Sequence[ClientSession]) -> "Iterable[tuple[Replica, list[int] | None]]":
    """Each draft with the indices of its sequences; None: all of them."""
    first = sequences[0].replica
    if first is not None and all(each.replica is first for each in sequences):
        return [(first, None)]
    places = defaultdict[Replica, list[int]](list)
    for place, each in enumerate(sequences):
        if each.replica is not None:
            places[each.replica].append(place)
    return places.items()
