"""The client's sessions and the draft that each is open with: opens, moves, brings back and closes them.

A sequence is open with one draft at a time, or with none. A sequence that loses its draft is opened with the
next best, from its tokens. A request may name the drafts that it prefers.

Texts cost time and bytes. Drafts announce their room: a full one is not asked, and a long text is sent only
after the draft has offered to take it. `open_waiting` opens the shortest texts first, and only so many at a
time that the target is not held up; the next call continues.

Drafts are chosen by rendezvous hashing with bounded loads. Each pair of a draft and a prefix has a score, the
hash of the two, and the draft with the highest score wins. So texts that begin alike go to the same draft,
whose KV cache holds their common prefix, and a draft that is added or lost changes the choice only for the
prefixes that score highest with it. A draft that has more than its share of the sequences is skipped.

`LookaheadEstimator` estimates how many rounds of the target pass until a draft's answer arrives, and makes
the draft's tree deeper by that much.

The pool (pool.py) calls `greeted`, `lost` and `leave` when drafts come and go, `move_one` and `move_all` when
a draft is late or stalled, `bring_back` when a draft may have room again, and `open_waiting` before it sends.
Knows drafts, mirrors and the messages that open and close a session. Does not know outcomes or nodes
(client.py). Call everything here with the pool's lock held.
"""

import itertools
import logging
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, TypeVar

import numpy as np

from ssd.draft.client.mirrors import Mirrors
from ssd.draft.client.replica import PoolStats, Replica
from ssd.draft.protocol.codec import UnsendableError, sendable
from ssd.draft.protocol.messages import (
    MAX_ID,
    MAX_TOKENS,
    OFFER_SECONDS,
    AskOpen,
    Close,
    Open,
    Sampling,
    pack_ints,
    prefix_hashes,
)
from ssd.moving_average import MovingAverage

logger = logging.getLogger(__name__)

ROUNDS_BETWEEN_RESYNCS = 4
_MOST_ROUNDS_BETWEEN = 64
UNKNOWN_TOKENS = "it holds tokens the draft does not know"
_ASKS_FROM = 1024
"""A text of more tokens is sent after an offer only. A shorter one is hardly larger than the question."""
_PATIENCE_SECONDS = 2 * OFFER_SECONDS
"""A question for room without an answer for so long was lost, or its answer was."""
_TOKENS_AT_ONCE = 1 << 17
"""Tokens of the texts that one call of `open_waiting` opens, and one more text: about a millisecond."""
_TOKENS_A_SESSION = 256
"""What opening an empty text would cost, in tokens."""


@dataclass(slots=True)
class ClientSession:
    seq: int
    """Its id on the wire and in the mirrors."""
    tokens: "array[int]"
    """Its text, followed by forced tokens that are not verified yet."""
    num_prompt: int
    sampling: Sampling
    max_len: int
    replica: Replica | None = None
    """The draft that it is open with, or that was asked to take it."""
    is_sent: bool = False
    """That draft has its text."""
    is_offered: bool = False
    """That draft has offered to take it."""
    former: Replica | None = None
    """The draft that it is leaving."""
    has_returned: bool = False
    """It was opened with its draft after that had declined it for lack of room."""
    declined: "dict[Replica, bool]" = field(default_factory=dict)
    """The drafts that declined it, and whether for lack of room."""
    forced: tuple[int, ...] = ()
    """Tokens at the end that its grammar forces; sent to the draft, not verified yet."""
    asked_at: int = -ROUNDS_BETWEEN_RESYNCS
    """How many outcomes there had been when the whole tree was last requested (RESYNC)."""
    draft_name: str = ""
    """The draft name that its request asks for; empty: any."""
    num_reopened: int = 0
    """Times it was opened again because its draft missed tokens."""

    @property
    def is_open(self) -> bool:
        return self.is_sent

    @property
    def room(self) -> int:
        """How many drafted tokens may follow the text. One less than fit: the target adds the last token."""
        return max(0, self.max_len - len(self.tokens) + len(self.forced) - 1)

    def take_decided(self, tokens: Sequence[int]) -> Sequence[int] | None:
        """Adds decided tokens to the text; returns those that were not already sent as forced tokens.

        None: other tokens were sent as forced ones, so the session must be opened again.
        """
        if not self.forced:
            self.tokens.extend(tokens)
            return tokens
        count = min(len(self.forced), len(tokens))
        if self.forced[:count] == tuple(tokens[:count]):
            self.forced, new = self.forced[count:], tokens[count:]
            self.tokens.extend(new)
            return new
        del self.tokens[len(self.tokens) - len(self.forced) :]
        self.forced = ()
        self.tokens.extend(tokens)
        return None

    def may_reopen(self, num_rounds: int) -> bool:
        """Whether to open it again because its draft has missed an outcome; if so, counts the reopening.

        `num_rounds`: outcomes since it was last opened. At least 2 are required, because a draft notices a
        missing outcome only at the next one. The number doubles with each reopening, up to a bound.
        """
        if num_rounds < min(2 << self.num_reopened, _MOST_ROUNDS_BETWEEN):
            return False
        self.num_reopened += 1
        return True

    def reason_not_to_send(self, replica: Replica) -> str:
        """Why it cannot be opened with this draft; empty: it can."""
        if len(self.tokens) > MAX_TOKENS:
            return "it is too long for a message"
        if len(self.tokens) + 2 > replica.max_model_len:
            # The draft makes the same check: there must be room for a node and the token after it.
            return f"it does not fit into the draft's context of {replica.max_model_len} tokens"
        try:
            sendable(self.sampling, replica.vocab_size)
        except UnsendableError as error:
            return str(error)
        return UNKNOWN_TOKENS if largest(self.tokens) >= replica.vocab_size else ""

    def opening(self, replica: Replica, epoch: int, lookahead: int) -> Open:
        return Open(
            seq=self.seq,
            epoch=epoch,
            tokens=pack_ints(self.tokens),
            num_prompt=self.num_prompt,
            max_len=min(self.max_len, MAX_ID),
            lookahead=lookahead,
            sampling=sendable(self.sampling, replica.vocab_size),
        )


def largest(tokens: Sequence[int]) -> int:
    """The largest token id. A negative id counts as larger than any vocabulary."""
    if isinstance(tokens, array):
        return int(np.frombuffer(tokens, np.uint32).max())
    return max(tokens) if min(tokens) >= 0 else MAX_ID


class SessionRouter:
    def __init__(
        self, mirrors: Mirrors, stats: PoolStats, lookahead: int, clock: Callable[[], float]
    ) -> None:
        self._mirrors, self._stats, self._clock = mirrors, stats, clock
        self.lookahead_estimator = LookaheadEstimator(lookahead, clock)
        self._replicas: list[Replica] = []
        """Drafts that have sent HELLO and were neither lost nor removed since."""
        self._by_seq: dict[int, ClientSession] = {}
        self._waiting: dict[int, ClientSession] = {}
        """By `seq`: to be opened by the next calls of `open_waiting`."""
        self._homeless: dict[int, ClientSession] = {}
        """By `seq`: no draft has room for them."""
        self._asked: dict[int, float] = {}
        """By `seq`: since when it waits for the answer to a question for room."""
        self._free_seqs: list[int] = []
        self._next_epoch = itertools.count(1).__next__
        self.is_paused = False
        """While set, all sessions are closed and none is opened."""

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self._by_seq.values())

    def free_seq(self) -> int:
        """An id for a session that is about to be added."""
        return self._free_seqs.pop() if self._free_seqs else len(self._by_seq)

    def add(self, session: ClientSession) -> None:
        self._by_seq[session.seq] = session
        self.open(session)

    def remove(self, session: ClientSession) -> None:
        self.close(session)
        del self._by_seq[session.seq]
        self._free_seqs.append(session.seq)

    def pause(self) -> None:
        self.is_paused = True
        for session in self:
            self.close(session)

    def resume(self) -> None:
        self.is_paused = False
        self.open_all()

    def current(self, replica: Replica, seq: int, epoch: int) -> ClientSession | None:
        """The session, if it is open with this draft and in this epoch. Else its messages are ignored: they
        are old, or name another draft's sequence."""
        session = self._by_seq.get(seq)
        if session is None or session.replica is not replica or self._mirrors.epoch[seq] != epoch:
            return None
        return session

    def open_all(self) -> None:
        for session in self:
            if session.replica is None:
                self.open(session)

    def open(self, session: ClientSession) -> None:
        """Has it opened: again with the draft that has it, or with the best one other than its former."""
        if not self.is_paused:
            session.is_sent = False
            self._homeless.pop(session.seq, None)
            self._waiting[session.seq] = session

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def open_waiting(self) -> None:
        """Opens sessions that wait, as many as the target has time for. Those with an offer come first."""
        if not self._waiting:
            return
        left = _TOKENS_AT_ONCE
        for session in sorted(self._waiting.values(), key=_turn):
            if left <= 0:
                return
            del self._waiting[session.seq]
            self._open(session)
            left -= len(session.tokens) + _TOKENS_A_SESSION

    def renew_questions(self) -> None:
        """Opens sessions anew whose question for room was not answered in time."""
        late = [seq for seq, since in self._asked.items() if self._clock() - since > _PATIENCE_SECONDS]
        for session in [self._by_seq[seq] for seq in late]:
            self._part(session)
            self.open(session)

    def offered(self, session: ClientSession) -> None:
        """Its draft keeps room for it."""
        if not session.is_sent:
            self._asked.pop(session.seq, None)
            session.is_offered = True
            self._waiting[session.seq] = session

    def close(self, session: ClientSession) -> None:
        self._waiting.pop(session.seq, None)
        self._homeless.pop(session.seq, None)
        if session.replica is not None:
            session.replica.post(Close(session.seq, int(self._mirrors.epoch[session.seq])))
            self._part(session)

    def decline(self, session: ClientSession, replica: Replica, reason: str) -> None:
        """Closes it, for a reason that the client has found, and does not open it with this draft again."""
        self.close(session)
        self._note_declined(session, replica, reason, may_return=False)

    def declined_by(self, replica: Replica, session: ClientSession, message: Close) -> None:
        """The draft has closed it, or does not take it: opens it with another draft."""
        self._part(session)
        self._note_declined(session, replica, message.reason, may_return=message.may_return)
        self.open(session)

    def greeted(self, replica: Replica) -> None:
        """The draft is ready, and has no sessions yet."""
        self._replicas.append(replica)
        self.open_all()

    def lost(self, replica: Replica) -> None:
        """The draft is gone, with all its sessions: opens them with other drafts."""
        self._remove_replica(replica)
        self._forget_refusals(replica)
        for session in self._with(replica):
            session.former = replica
            self._part(session)
        self.open_all()

    def leave(self, replica: Replica) -> None:
        """Closes the draft's sessions, and opens them with other drafts."""
        self._remove_replica(replica)
        for session in self._with(replica):
            session.former = replica
            self.close(session)
        self.open_all()
        self._forget_refusals(replica)

    def move_one(self, replica: Replica) -> None:
        """Moves the shortest text, which another draft prefills soonest."""
        for session in sorted(self._movable(replica), key=lambda each: len(each.tokens))[:1]:
            self._move(session)

    def move_all(self, replica: Replica) -> int:
        """Moves all that another draft can take; the rest stay. Returns how many moved."""
        movable = self._movable(replica)
        for session in movable:
            self._move(session)
        return len(movable)

    def bring_back(self, replica: Replica) -> None:
        """Opens the shortest sessions without a draft, as many as this draft may have room for."""
        if not self._homeless:
            return
        found = [each for each in self._homeless.values() if each.declined.get(replica, True)]
        for session in sorted(found, key=lambda each: len(each.tokens))[: replica.num_seats]:
            if not replica.may_have_room(len(session.tokens)):
                return
            session.has_returned = session.declined.pop(replica, False)
            replica.note_return()
            self.open(session)

    def check_integrity(self) -> None:
        seqs = sorted([*self._by_seq, *self._free_seqs])
        if seqs != list(range(len(seqs))):
            raise RuntimeError("the `seq` of a session is lost or used twice")
        for session in self:
            places = (session.is_sent, session.seq in self._waiting, session.seq in self._homeless)
            if session.replica is None and sum(places) != (not self.is_paused):
                raise RuntimeError("a session without a draft does not wait for one")
        if any(self._by_seq[seq].replica is None or self._by_seq[seq].is_sent for seq in self._asked):
            raise RuntimeError("a question for room is remembered that no session waits for")

    def _remove_replica(self, replica: Replica) -> None:
        if replica in self._replicas:
            self._replicas.remove(replica)

    def _forget_refusals(self, replica: Replica) -> None:
        for session in self:
            session.declined.pop(replica, None)

    def _with(self, replica: Replica) -> list[ClientSession]:
        return [session for session in self if session.replica is replica]

    def _movable(self, replica: Replica) -> list[ClientSession]:
        return [each for each in self._with(replica) if self._choose(each, replica) is not None]

    def _move(self, session: ClientSession) -> None:
        session.former = session.replica
        self.close(session)
        self.open(session)

    def _choose(self, session: ClientSession, but: Replica | None) -> Replica | None:
        """Prefers drafts that are not stalled, those that the request names, those that announce room for the
        whole text, and those that are not behind, in this order; among the rest the highest score wins.

        A draft that announces less room is asked too: it may have read the text's beginning already. A draft
        without seats takes sequences only from one that has failed: few rows for each are more than none.
        """
        has_failed = but is not None and (but.is_stalled or not but.is_ready)
        others = [each for each in self._replicas if each.is_ready and not each.drains and each is not but]
        ready = [each for each in others if each.num_seats] or (others if has_failed else [])
        found = [each for each in ready if each not in session.declined]
        found = [each for each in found if not each.is_stalled] or found
        if session.draft_name:
            found = [each for each in found if each.draft_name == session.draft_name] or found
        found = [each for each in found if each.announces_room(len(session.tokens))] or found
        in_time = [each for each in found if not each.is_behind]
        return choose(in_time or found, session.tokens)

    def _open(self, session: ClientSession) -> None:
        """Opens it with its draft or another one, or asks that draft for room.

        Skips drafts that have declined it and drafts that its text cannot be sent to.
        """
        while (replica := session.replica or self._choose(session, session.former)) is not None:
            reason = session.reason_not_to_send(replica)
            if not reason:
                self._open_with(session, replica)
                return
            self.decline(session, replica, reason)
        self._homeless[session.seq], session.former = session, None

    def _open_with(self, session: ClientSession, replica: Replica) -> None:
        length, is_new = len(session.tokens), session.replica is None
        epoch = int(self._mirrors.epoch[session.seq]) if session.is_offered else self._next_epoch()
        self._mirrors.open(session.seq, epoch, length, draft=replica.number)
        asks, surely_fits = is_new and length > _ASKS_FROM, replica.announces_room(length)
        if is_new:
            replica.note_opened(length)
            session.num_reopened = 0
            self._stats.num_moved += session.former is not None and session.former is not replica
        session.replica, session.asked_at = replica, -ROUNDS_BETWEEN_RESYNCS
        session.is_sent, session.is_offered, session.former = not asks, False, None
        replica.note_sent()
        if asks:
            # Hashes take longer than sending the text, and are needed only where it may not fit otherwise.
            prefix = b"" if surely_fits else prefix_hashes(session.tokens)
            self._asked[session.seq] = self._clock()
            replica.post(AskOpen(session.seq, epoch, length, prefix))
        else:
            # The text may be sent although its question is not answered: a forced token was not decided.
            self._asked.pop(session.seq, None)
            lookahead = self.lookahead_estimator.lookahead_with(replica.answer.value)
            replica.post(session.opening(replica, epoch, lookahead))

    def _part(self, session: ClientSession) -> None:
        """Closes it on the client only; sends nothing to its draft."""
        self._mirrors.close(session.seq)
        session.is_sent = session.is_offered = False
        self._waiting.pop(session.seq, None)
        self._asked.pop(session.seq, None)
        if session.replica is not None:
            session.replica.num_own_sequences -= 1
            session.replica = None

    def _note_declined(
        self, session: ClientSession, replica: Replica, reason: str, *, may_return: bool
    ) -> None:
        logger.info("a draft cannot take sequence %d: %s", session.seq, reason)
        self._stats.num_declined += 1
        session.declined[replica] = may_return
        if may_return:
            replica.note_declined(after_return=session.has_returned)
            session.has_returned = False


def _turn(session: ClientSession) -> tuple[bool, int]:
    return not session.is_offered, len(session.tokens)


_PREFIX_TOKENS = 64
"""Leading tokens that are hashed. Texts of one kind share a template or the start of a system prompt."""
_SLACK = 1.25
"""A draft is skipped once it has this many times the mean number of sequences, plus one."""


class Candidate(Protocol):
    @property
    def name(self) -> str:
        """Every target knows the same draft by the same name."""
        ...

    @property
    def num_sequences(self) -> int: ...


C = TypeVar("C", bound=Candidate)


def choose(candidates: Sequence[C], tokens: Sequence[int]) -> C | None:
    """The draft with the highest score for this text, of those that have no more than their share."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    most = _SLACK * sum(each.num_sequences for each in candidates) / len(candidates) + 1
    prefix = np.asarray(tokens[:_PREFIX_TOKENS], dtype=np.int32).tobytes()
    free = [each for each in candidates if each.num_sequences < most]
    return max(free, key=lambda each: score(each.name, prefix))


def score(name: str, prefix: bytes) -> bytes:
    return blake2b(prefix, digest_size=8, key=name.encode()[-64:]).digest()


_ROUND_WEIGHT = 0.1
"""Weight of the newest round."""
_LONGEST_ROUND = 2.0
"""Seconds; a longer time between two rounds counts as a pause."""
_MOST = 32
"""Largest lookahead to send: a deeper tree would have room for its likeliest path only."""


class LookaheadEstimator:
    def __init__(self, lookahead: int, clock: Callable[[], float]) -> None:
        self._lookahead, self._clock = lookahead, clock
        self._round = MovingAverage(_ROUND_WEIGHT)
        self._last: float | None = None

    def note_round(self) -> None:
        """A round has ended."""
        now, last = self._clock(), self._last
        self._last = now
        if last is not None and 0 < now - last < _LONGEST_ROUND:
            self._round.note(now - last)

    def lookahead_with(self, answer_seconds: float) -> int:
        """The lookahead to send to a draft whose answers take this long. The draft grows its tree to twice
        that depth, plus one."""
        if not self._round.value:
            return self._lookahead
        behind = answer_seconds / self._round.value
        # The normal depth already covers answers that take up to one round.
        extra = max(0.0, behind - 1) * (self._lookahead + 1) / 2
        return min(max(_MOST, self._lookahead), self._lookahead + math.ceil(extra))
