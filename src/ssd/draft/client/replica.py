"""One draft of the pool: its source, and the present connection to it.

It outlives its connections: when one is lost, it makes another, after a delay drawn at random between zero
and a growing bound (`Backoff`), so that the targets of a draft that comes back do not all connect at once.
Knows its source, when it may try again, and what the draft announces about itself; `PoolStats` adds that up
over all drafts, for metrics. Which sequences a draft has, and when it is read, is decided by the router and
the pool (router.py, pool.py).
"""

import itertools
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd.draft.client.connection import Connection, ConnectionState, DraftSource
from ssd.draft.protocol.messages import MAX_COUNT, MAX_ID, AnyMessage, NodesHeads, Stats
from ssd.moving_average import MovingAverage

logger = logging.getLogger(__name__)

_RETRY_AFTER_REFUSAL_SECONDS = 30.0
"""A draft of another model family stays unsuitable, but another may be started at its address."""
_RETURN_SECONDS = 5.0
"""After this time one declined session is tried again, even if the draft announces no room for it."""
_SECONDS_BETWEEN_RETURNS = 0.005
"""The same where it announces room and has declined a return nevertheless: a faulty draft may do so again and
again."""
_LONGEST_RETURN_SECONDS = 60.0
"""Both times double with each return that is declined, up to this."""
_SILENCE_SECONDS = 0.5
_SILENCE_STEPS = 4
"""A draft that owes an answer for longer than both of these (seconds, its own steps) has stalled."""

_PATIENCE_SECONDS = 1.0
"""An outcome without nodes after this time gets none: the draft had nothing to grow."""
_LATE, _PROMPT = 0.6, 0.3
"""Shares of late rounds: above the first a draft is overloaded, below the second it has capacity."""
_LATE_WEIGHT = 0.05
"""Weight of the newest rounds."""
_ANSWER_WEIGHT = 0.1
"""Weight of the newest answer."""
_LATENESS_HALVES_SECONDS = 5.0
"""Without rounds for this long, lateness halves, and again each time it passes; otherwise no session would
ever be opened with the draft again. Not sooner, because rounds may be slow."""
_SECONDS_BETWEEN_MOVES = 0.25
"""Sessions leave a late draft one at a time: a few fewer may be enough."""

_NUMBERS = itertools.count(1)


class Replica:
    def __init__(
        self,
        source: DraftSource,
        clock: Callable[[], float],
        connection: Connection | None = None,
        *,
        is_on_trial: bool = False,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw`: the next random number from 0 to 1, for the time until a lost draft is tried again."""
        self.source, self.connection = source, connection
        self.number = next(_NUMBERS)
        """No other draft of this process has it."""
        self.is_on_trial = is_on_trial
        """It replaces the earlier drafts as soon as it is ready."""
        self._clock = clock
        self._retry = Backoff(clock, draw)
        self._ready_at = 0.0
        self._unanswered_since: float | None = None
        """Since when it has owed an answer."""
        self._asked: tuple[int, int, float] | None = None
        """A sequence, the number of an outcome of it, and when that was sent."""
        self.answer = MovingAverage(_ANSWER_WEIGHT)
        """Seconds from an outcome until there are nodes that follow it: the round trip, and a step."""
        self.stats: Stats | None = None
        """Its latest STATS."""
        self._num_promised, self._tokens_promised = 0, 0
        """Sequences opened since its latest STATS, which does not count them, and their tokens."""
        self._tried_at = float("-inf")
        """When a session returned last, or was declined for lack of room."""
        self._is_kept, self._num_sent_away = False, 0
        """Whether a session returned and was not declined since; returns that were declined."""
        self.step_seconds = 0.0
        """Duration of its latest step."""
        self._lateness, self._judged_at = MovingAverage(_LATE_WEIGHT, 0.0), 0.0
        """The share of the latest rounds for which it was late, and when the last of them ended."""
        self._moved_one_at = float("-inf")
        self.num_own_sequences = 0
        """Sequences that this target has open with it."""
        self.was_ready = False
        self.refusal = ""
        """Why the draft will never work with this engine; empty if it may."""
        self.last_loss = ""
        """Why the last connection was lost."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def draft_name(self) -> str:
        """The draft's name for itself; several may share one. Empty before its HELLO."""
        connection = self.connection
        return connection.name if connection is not None else ""

    @property
    def is_ready(self) -> bool:
        connection = self.connection  # Read once: another thread may drop it.
        return connection is not None and connection.state is ConnectionState.READY

    @property
    def is_over(self) -> bool:
        """Its connection was lost or refused."""
        connection = self.connection
        return connection is not None and connection.state in (ConnectionState.LOST, ConnectionState.REFUSED)

    @property
    def is_stalled(self) -> bool:
        """It owes an answer for too long: it may be frozen, cut off or overloaded."""
        longest = max(_SILENCE_SECONDS, _SILENCE_STEPS * self.step_seconds)
        return self._unanswered_since is not None and self._clock() - self._unanswered_since > longest

    @property
    def lateness(self) -> float:
        """Share of the latest rounds for which it was late; decays while there are none."""
        idle = max(0.0, self._clock() - self._judged_at - _LATENESS_HALVES_SECONDS)
        return float(self._lateness.value * 0.5 ** (idle / _LATENESS_HALVES_SECONDS))

    @property
    def is_behind(self) -> bool:
        """It answers, but mostly too late: it gets no further sequences."""
        return self.lateness > _LATE

    @property
    def is_late(self) -> bool:
        """It is behind, and no session was moved away from it just now."""
        return self.is_behind and self._clock() - self._moved_one_at > _SECONDS_BETWEEN_MOVES

    @property
    def is_prompt(self) -> bool:
        return self.lateness < _PROMPT and not self.is_stalled

    @property
    def vocab_size(self) -> int:
        """Ids both sides know."""
        connection = self.connection
        return connection.vocab_size if connection is not None else MAX_ID

    @property
    def max_model_len(self) -> int:
        """The longest text that it says it can read; MAX_ID where it has not said."""
        connection = self.connection
        return (connection.max_model_len if connection is not None else 0) or MAX_ID

    @property
    def drains(self) -> bool:
        """It has announced that it will end."""
        return self.stats is not None and self.stats.drains

    @property
    def num_seats(self) -> int:
        """Sequences that it may still take, by its latest STATS; 1 if it does not say."""
        stats = self.stats
        if stats is None or (stats.free_sequences is None and not stats.drains):
            return 1
        return 0 if stats.drains else max(0, (stats.free_sequences or 0) - self._num_promised)

    def announces_room(self, num_tokens: int) -> bool:
        """Whether a text surely fits, by its latest STATS and what was opened since."""
        free = self.stats.free_tokens if self.stats is not None else None
        return free is not None and free - self._tokens_promised >= num_tokens

    def may_have_room(self, num_tokens: int) -> bool:
        """Whether to open a session with it that has no draft for lack of room."""
        is_announced = self.num_seats > 0 and self.announces_room(num_tokens)
        if is_announced and not self._num_sent_away:
            return True
        wait = self._return_wait(_SECONDS_BETWEEN_RETURNS if is_announced else _RETURN_SECONDS)
        return self._clock() - self._tried_at >= wait

    @property
    def num_sequences(self) -> int:
        """Open at the draft for all targets, by its latest STATS, but at least our own."""
        announced = self.stats.num_sequences if self.stats is not None else 0
        return max(announced, self.num_own_sequences)

    def post(self, message: AnyMessage) -> None:
        if self.connection is not None and self.is_ready:
            self.connection.post(message)

    def overfull(self) -> str:
        """Why the connection must end: the draft sends far more than is read. Empty: it need not."""
        return self.connection.overfull() if self.connection is not None else ""

    def flush(self) -> None:
        """Sends what has been posted since the last time."""
        if self.connection is not None:
            self.connection.flush()

    def note_opened(self, num_tokens: int) -> None:
        """A sequence with so many tokens is opened with it, or it was asked to take one."""
        self.num_own_sequences += 1
        self._num_promised += 1
        self._tokens_promised += num_tokens

    def note_declined(self, *, after_return: bool) -> None:
        """It had no room for a sequence. The next one waits, and the longer the more returns it declines."""
        self._num_sent_away += after_return
        self._is_kept, self._tried_at = False, self._clock()

    def note_return(self) -> None:
        """A session without a draft is opened with it: the next waits for the result."""
        if self._is_kept and self._clock() - self._tried_at > _RETURN_SECONDS:
            self._num_sent_away = 0
        self._is_kept, self._tried_at = True, self._clock()

    def _return_wait(self, seconds: float) -> float:
        # After 16 doublings every time is at its bound.
        return min(seconds * 2.0 ** min(self._num_sent_away, 16), _LONGEST_RETURN_SECONDS)

    def note_stats(self, stats: Stats) -> None:
        """The duration of a step is known from the second STATS on: the first covers earlier steps too."""
        last, self.stats = self.stats, stats
        self._num_promised = self._tokens_promised = 0
        if last is not None and stats.num_steps > last.num_steps:
            seconds = max(0.0, stats.seconds - last.seconds)
            self.step_seconds = seconds / (stats.num_steps - last.num_steps)

    def note_sent(self) -> None:
        """Something was sent that it must answer."""
        if self._unanswered_since is None:
            self._unanswered_since = self._clock()

    def note_received(self) -> None:
        self._unanswered_since = None

    def note_outcome_sent(self, seq: int, n: int) -> None:
        """Starts measuring how long the draft takes to send nodes that follow this outcome."""
        if self._asked is None or self._clock() - self._asked[2] > _PATIENCE_SECONDS:
            self._asked = (seq, n, self._clock())

    def note_nodes(self, heads: NodesHeads) -> None:
        if self._asked is not None:
            seq, n, asked_at = self._asked
            if (heads.n[heads.seq == seq] >= n).any():
                self.answer.note(self._clock() - asked_at)
                self._asked = None

    def note_rounds(self, num_late: int, num_rounds: int) -> None:
        """Rounds have ended for which it was in time or late."""
        self._lateness.value = self.lateness
        self._lateness.note(num_late / num_rounds)
        self._judged_at = self._clock()

    def note_moved_one(self) -> None:
        self._moved_one_at = self._clock()

    def new_connection(self) -> Connection | None:
        """A connection that has not received HELLO yet; None if it is too early or the attempt failed."""
        if not self._retry.is_due:
            return None
        try:
            return self.source.connect()
        except (OSError, ValueError) as error:
            # No process, socket, folder or key just now: the target goes on without a draft.
            logger.warning("no connection to a draft: %s", error)
            self.last_loss = str(error)
            self._retry.note_failure()
            return None

    def note_hello(self) -> None:
        self.was_ready, self.refusal, self._ready_at = True, "", self._clock()

    def drop(self) -> Connection | None:
        """Gives the connection up; the caller closes it."""
        connection, self.connection = self.connection, None
        if connection is None:
            return None
        if connection.state is ConnectionState.REFUSED:
            self.refusal = connection.reason
            self._retry.wait_about(_RETRY_AFTER_REFUSAL_SECONDS)
        else:
            self._retry.note_failure(self._clock() - self._ready_at if self.was_ready else 0.0)
        self.was_ready, self.last_loss = False, connection.reason
        # The next connection may reach another process. The time of answers belongs to the address: keep it.
        self.stats, self._unanswered_since, self._lateness.value, self._asked = None, None, 0.0, None
        self._tried_at, self._is_kept, self._num_sent_away = float("-inf"), False, 0
        self.step_seconds = 0.0
        self._num_promised = self._tokens_promised = 0
        return connection


FIRST_DELAY, LONGEST_DELAY = 0.25, 10.0
"""Seconds; each failure doubles the delay."""
_LONG_LIFE = 10.0
"""Seconds after which a connection counts as healthy, and the delay starts anew."""


class Backoff:
    def __init__(self, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        """`draw`: the next random number from 0 to 1."""
        self._clock, self._draw = clock, draw
        self._not_before = 0.0
        self._delay = FIRST_DELAY

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._not_before

    def note_failure(self, lived: float = 0.0) -> None:
        """A connection was lost after `lived` seconds, or could not be made."""
        if lived >= _LONG_LIFE:
            self._delay = FIRST_DELAY
        self._wait(self._draw() * self._delay)
        self._delay = min(2 * self._delay, LONGEST_DELAY)

    def wait_about(self, seconds: float) -> None:
        """Waits for this long, or up to a fifth less."""
        self._wait(seconds * (1 - 0.2 * self._draw()))

    def _wait(self, seconds: float) -> None:
        self._not_before = self._clock() + seconds


@dataclass(slots=True)
class PoolStats:
    """Since the engine started, over all drafts."""

    num_connects: int = 0
    num_losses: int = 0
    num_declined: int = 0
    num_resyncs: int = 0
    num_frames: int = 0
    num_steps: int = 0
    step_seconds: float = 0.0
    """Of the latest draft step."""
    draft_seconds: float = 0.0
    num_sequences: int = 0
    """Open at the drafts, for any target, as they last reported."""
    kv_usage: float = 0.0
    """Of the fullest draft."""
    tenant: str = ""
    """The name that drafts have for this target's key; empty where it has none."""
    num_own_rows: int = 0
    """Of draft steps, computed for that tenant."""
    is_resting: bool = False
    """Drafting is paused for a while: hardly any of its tokens was accepted."""
    num_ready: int = 0
    """Drafts that are ready."""
    num_moved: int = 0
    """Times a sequence went to another draft, because its own was lost, left or stalled."""

    def note_loads(self, latest: Sequence[Stats]) -> None:
        """`latest`: the last STATS of each draft that is connected."""
        self.num_sequences = sum(each.num_sequences for each in latest)
        self.kv_usage = max((each.kv_usage for each in latest), default=0.0)

    def note_work(self, before: Stats, after: Stats) -> None:
        """Adds what a draft did between two of its STATS. Totals stop at MAX_COUNT."""
        rows = max(0, after.num_own_rows - before.num_own_rows)
        self.num_own_rows = min(self.num_own_rows + rows, MAX_COUNT)
        steps, seconds = after.num_steps - before.num_steps, max(0.0, after.seconds - before.seconds)
        if steps > 0:
            self.num_steps = min(self.num_steps + steps, MAX_COUNT)
            self.draft_seconds += seconds
            self.step_seconds = seconds / steps
