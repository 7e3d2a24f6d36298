"""One draft of the pool: its source, and the present connection to it.

It outlives its connections: when one is lost, it makes another. Knows its source, when it may try again, and
what the draft announces about itself. Which sequences it has, and when it is read, is decided by the router
and the pool (router.py, pool.py).
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from ssd.draft.client.connection import Connection, ConnectionState
from ssd.draft.client.reconnect import Backoff
from ssd.draft.protocol.messages import MAX_ID, AnyMessage, NodesHeads, Stats
from ssd.moving_average import MovingAverage

logger = logging.getLogger(__name__)

_RETRY_AFTER_REFUSAL_SECONDS = 30.0
"""A draft of another family does not change its mind, but it may be replaced."""
_ROOMY = 0.7
"""Share of a draft's KV cache in use below which it takes those that there was no room for."""
_RETURN_SECONDS = 5.0
"""After which one of those that a draft had no room for asks again, though nothing says there is any."""
_SECONDS_BETWEEN_RETURNS = 0.005
"""Each return is told with the whole text, and a draft that lies may say ever again that it has room."""
_LONGEST_RETURN_SECONDS = 60.0
"""Both double with each return that is declined, up to this."""
_SILENCE_SECONDS = 0.5
_SILENCE_STEPS = 4
"""A draft that was told something and says nothing for so long, whichever is longer, has stalled."""

_PATIENCE_SECONDS = 1.0
"""What is not answered by then never is: there was nothing to grow."""
_LATE, _PROMPT = 0.6, 0.3
"""Shares of rounds for which a draft was late: of one that has too much to do, and of one that has not."""
_LATE_WEIGHT = 0.05
"""Of the newest rounds."""
_ANSWER_WEIGHT = 0.1
"""Of the newest answer."""
_LATENESS_HALVES_SECONDS = 5.0
"""After so long without a round a draft's lateness begins to halve in so many seconds each: else nobody would
ever go back to it. Not before: rounds may be slow."""
_SECONDS_BETWEEN_MOVES = 0.25
"""A draft that is late hands on one sequence at a time: fewer may be all that it needs."""


class DraftSource(Protocol):
    """Where a draft is to be had (sources.py)."""

    def connect(self) -> Connection | None:
        """A new one, or None while it is too early for it."""
        ...

    def is_broken(self) -> str:
        """Why the connection cannot last, as far as the source knows: a process that ended. Empty: it can."""
        ...

    @property
    def name(self) -> str:
        """The same for whoever asks for the same draft."""
        ...

    def close(self) -> None: ...


class Sources(Protocol):
    """Where drafts are to be had just now (sources.py). Nothing here blocks but `close`."""

    def current(self) -> Sequence[DraftSource]:
        """The same object for as long as it is the same draft."""
        ...

    def problem(self) -> str:
        """Why there is none; empty where there is one, or one is still looked for."""
        ...

    def close(self) -> None: ...


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
        """It takes over from those before as soon as it is ready, or not at all."""
        self._clock = clock
        self._retry = Backoff(clock, draw)
        self._greeted_at = 0.0
        self._told_at: float | None = None
        """Since when it has been owed an answer."""
        self._asked: tuple[int, int, float] | None = None
        """A sequence, an outcome of it, and when it was told."""
        self.answer = MovingAverage(_ANSWER_WEIGHT)
        """Seconds from an outcome until there are nodes that follow it: the round trip, and a step."""
        self.stats: Stats | None = None
        """Its latest word on itself."""
        self._declined_at: float | None = None
        """When it last had no room for a sequence."""
        self._returned_at = float("-inf")
        self._when_full: Stats | None = None
        """Its first word on itself after that."""
        self._num_back, self._num_sent_away = 0, 0
        """Sequences that came back and were not declined since; returns that were declined."""
        self._taken_since: float | None = None
        """When the first came back after the last that was declined."""
        self.step_seconds = 0.0
        """Of its latest step."""
        self._lateness, self._judged_at = MovingAverage(_LATE_WEIGHT, 0.0), 0.0
        """The share of the latest rounds for which it was late, and when the last of them ended."""
        self._lightened_at = float("-inf")
        self.num_followed = 0
        """Sequences that the host has with it."""
        self.has_greeted = False
        self.refusal = ""
        """Why the draft will never work with this engine; empty if it may."""
        self.last_loss = ""
        """Why the last connection was lost."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def draft_name(self) -> str:
        """What the draft calls itself; several may have one name. Empty before it has greeted."""
        connection = self.connection
        return connection.name if connection is not None else ""

    @property
    def is_ready(self) -> bool:
        connection = self.connection  # Read once: another thread may drop it.
        return connection is not None and connection.state is ConnectionState.READY

    @property
    def is_over(self) -> bool:
        """Its connection was lost, or refused."""
        connection = self.connection
        return connection is not None and connection.state in (ConnectionState.LOST, ConnectionState.REFUSED)

    @property
    def is_stalled(self) -> bool:
        """It may be frozen, cut off or overwhelmed: nothing came although something was due."""
        longest = max(_SILENCE_SECONDS, _SILENCE_STEPS * self.step_seconds)
        return self._told_at is not None and self._clock() - self._told_at > longest

    @property
    def lateness(self) -> float:
        """The share of the latest rounds for which it was late; forgotten while there are none."""
        idle = max(0.0, self._clock() - self._judged_at - _LATENESS_HALVES_SECONDS)
        return float(self._lateness.value * 0.5 ** (idle / _LATENESS_HALVES_SECONDS))

    @property
    def is_behind(self) -> bool:
        """It answers, but mostly too late: it has too much to do to get further sequences."""
        return self.lateness > _LATE

    @property
    def is_late(self) -> bool:
        """It is behind, and has not just been relieved of a sequence."""
        return self.is_behind and self._clock() - self._lightened_at > _SECONDS_BETWEEN_MOVES

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
    def is_roomy(self) -> bool:
        """Whether one that it had no room for may ask again."""
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
        """Open at the draft, for whichever engine: by its latest word, but ours at least."""
        announced = self.stats.num_sequences if self.stats is not None else 0
        return max(announced, self.num_followed)

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
        """It had no room for a sequence: what it says of itself next is what it calls full."""
        if self._num_back:
            self._num_back -= 1
            self._num_sent_away += 1
        self._taken_since = None
        self._declined_at, self._when_full = self._clock(), None

    def note_return(self) -> None:
        """One of those that it had no room for asks again: the next waits for what comes of it."""
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
        """One came back some time ago, and none was declined since."""
        return self._taken_since is not None and self._clock() - self._taken_since >= _RETURN_SECONDS

    def _grown(self, seconds: float) -> float:
        """A time to wait, as long as returns that were declined have made it."""
        if self._takes_back:
            return seconds
        # So many times doubled, each is at its longest.
        return min(seconds * 2.0 ** min(self._num_sent_away, 16), _LONGEST_RETURN_SECONDS)

    def note_stats(self, stats: Stats) -> None:
        self.stats = stats
        if self._declined_at is not None and self._when_full is None:
            self._when_full = stats

    def note_told(self) -> None:
        """It was told something that it answers."""
        if self._told_at is None:
            self._told_at = self._clock()

    def note_heard(self) -> None:
        self._told_at = None

    def note_asked(self, seq: int, n: int) -> None:
        """It was told the n-th outcome of a sequence: how long does it take to speak of what follows?"""
        if self._asked is None or self._clock() - self._asked[2] > _PATIENCE_SECONDS:
            self._asked = (seq, n, self._clock())

    def note_nodes(self, heads: NodesHeads) -> None:
        if self._asked is not None:
            seq, n, asked_at = self._asked
            if (heads.n[heads.seq == seq] >= n).any():
                self.answer.note(self._clock() - asked_at)
                self._asked = None

    def note_rounds(self, num_late: int, num_rounds: int) -> None:
        """Verifications have ended for which it had spoken, or was late."""
        self._lateness.value = self.lateness
        self._lateness.note(num_late / num_rounds)
        self._judged_at = self._clock()

    def note_lightened(self) -> None:
        self._lightened_at = self._clock()

    def new_connection(self) -> Connection | None:
        """One that is yet to be greeted; None where there is none to be had just now."""
        if not self._retry.is_due:
            return None
        try:
            return self.source.connect()
        except (OSError, ValueError) as error:
            # No process, socket, folder or key to be had just now: the target goes on alone.
            logger.warning("no line to a draft: %s", error)
            self.last_loss = str(error)
            self._retry.note_failure()
            return None

    def note_greeted(self) -> None:
        self.has_greeted, self.refusal, self._greeted_at = True, "", self._clock()

    def drop(self) -> Connection | None:
        """Lets go of the connection, which is to be closed."""
        connection, self.connection = self.connection, None
        if connection is None:
            return None
        if connection.state is ConnectionState.REFUSED:
            self.refusal = connection.reason
            self._retry.wait_about(_RETRY_AFTER_REFUSAL_SECONDS)
        else:
            self._retry.note_failure(self._clock() - self._greeted_at if self.has_greeted else 0.0)
        self.has_greeted, self.last_loss = False, connection.reason
        # Whoever answers next may be another process. How long its answers are under way is the address's.
        self.stats, self._told_at, self._lateness.value, self._asked = None, None, 0.0, None
        self._declined_at, self._when_full, self.step_seconds = None, None, 0.0
        self._num_back, self._num_sent_away, self._taken_since = 0, 0, None
        return connection
