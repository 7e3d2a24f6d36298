"""One draft of the pool: its source, and the present connection to it.

It outlives its connections: when one is lost, it makes another, after a delay drawn at random between zero
and a growing bound (`Backoff`), so that the targets of a draft that comes back do not all connect at once.
Knows its source, when it may try again, and what the draft announces about itself; `PoolStats` adds that up
over all drafts, for metrics. Which sequences a draft has, and when it is read, is decided by the router and
the pool (router.py, pool.py).
"""

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
_ROOMY = 0.7
"""KV usage below which sessions that the draft declined for lack of room are opened with it again."""
_RETURN_SECONDS = 5.0
"""After this time one declined session is tried again, even if the draft reports no room."""
_SECONDS_BETWEEN_RETURNS = 0.005
"""Each return sends the whole text, and a faulty draft may report room again and again."""
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
        self._declined_at: float | None = None
        """When it last had no room for a sequence."""
        self._returned_at = float("-inf")
        self._when_full: Stats | None = None
        """Its first STATS after that."""
        self._num_back, self._num_sent_away = 0, 0
        """Sessions that returned and were kept; returns that were declined."""
        self._taken_since: float | None = None
        """When the first session returned after the last decline."""
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
    def has_room(self) -> bool:
        """Whether a session that it declined for lack of room may be opened with it again."""
        stats, full = self.stats, self._when_full
        if stats is None:
            return False
        if self._clock() - self._returned_at < self._grown(_SECONDS_BETWEEN_RETURNS):
            return False
        if self._declined_at is not None and self._clock() - self._declined_at > self._grown(_RETURN_SECONDS):
            return True
        if stats.kv_usage >= _ROOMY:
            return False
        if self._declined_at is None:
            return True
        return full is not None and (
            stats.num_sequences < full.num_sequences or stats.kv_usage < full.kv_usage
        )

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

    def note_declined(self) -> None:
        """It had no room for a sequence: its next STATS shows what it considers full."""
        if self._num_back:
            self._num_back -= 1
            self._num_sent_away += 1
        self._taken_since = None
        self._declined_at, self._when_full = self._clock(), None

    def note_return(self) -> None:
        """A declined session is opened again: the next waits for the result."""
        self._returned_at = self._clock()
        if self._takes_back:
            self._num_sent_away = 0
        if self._taken_since is None:
            self._taken_since = self._clock()
        self._num_back += 1
        if self._declined_at is not None:
            self._declined_at = self._clock()

    @property
    def _takes_back(self) -> bool:
        """A session returned some time ago, and none was declined since."""
        return self._taken_since is not None and self._clock() - self._taken_since >= _RETURN_SECONDS

    def _grown(self, seconds: float) -> float:
        """The waiting time, doubled for each return that was declined."""
        if self._takes_back:
            return seconds
        # After 16 doublings every time is at its bound.
        return min(seconds * 2.0 ** min(self._num_sent_away, 16), _LONGEST_RETURN_SECONDS)

    def note_stats(self, stats: Stats) -> None:
        """The duration of a step is known from the second STATS on: the first covers earlier steps too."""
        last, self.stats = self.stats, stats
        if last is not None and stats.num_steps > last.num_steps:
            seconds = max(0.0, stats.seconds - last.seconds)
            self.step_seconds = seconds / (stats.num_steps - last.num_steps)
        if self._declined_at is not None and self._when_full is None:
            self._when_full = stats

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
        self._declined_at, self._when_full, self.step_seconds = None, None, 0.0
        self._num_back, self._num_sent_away, self._taken_since = 0, 0, None
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
