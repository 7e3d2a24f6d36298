"""The engine's end of the draft: mirrors of all its sequences, whatever happens to the other side.

Nothing here waits unless told how long. A line that is lost takes the mirrors with it; when the
next one is ready every sequence is opened again from its tokens. Knows the protocol and the
mirrors. Does not know processes (the `source` of lines does) or the target.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ssd.config import Acceptance
from ssd.draft.connection import Connection, LineState
from ssd.draft.messages import (
    MAX_ID,
    AnyMessage,
    Close,
    Nodes,
    Open,
    Outcome,
    Resync,
    Sampling,
    Stats,
    pack_ints,
)
from ssd.draft.mirror import Knowledge, Mirror, Path
from ssd.draft.wire_sampling import wire_sampling
from ssd.sampling import SamplingRow

logger = logging.getLogger(__name__)

_ROUNDS_BETWEEN_RESYNCS = 4
_KEPT_SPANS = 256
_RETRY_SECONDS = 2.0


class LineSource(Protocol):
    """Where lines come from: a supervised process, or an address."""

    def connect(self) -> Connection | None:
        """A new line, or None while it is too early for one."""
        ...

    def is_broken(self) -> str:
        """Why the line cannot live on, as far as the source knows: a process that ended. Empty: it can."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Followed:
    """A sequence that is to be speculated for."""

    tokens: list[int]
    sampling: SamplingRow
    max_len: int
    mirror: Mirror | None = None
    """None: not open with the draft."""
    is_declined: bool = False
    asked_at: int = -_ROUNDS_BETWEEN_RESYNCS
    """The round of the last request for the whole tree."""


@dataclass(slots=True)
class LineStats:
    """Since the engine started."""

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
    """Open at the draft, for whichever engine, by its latest word."""
    kv_usage: float = 0.0


class DraftClient:
    def __init__(
        self,
        source: LineSource,
        *,
        lookahead: int,
        acceptance: Acceptance = "coupled",
        saguaro: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio, self._saguaro = acceptance == "ratio", saguaro
        self._source = source
        self._lookahead = lookahead
        self._clock = clock
        self._line: Connection | None = None
        self._successor: tuple[LineSource, Connection] | None = None
        """Another draft that is about to take over."""
        self._followed: dict[int, _Followed] = {}
        self._next_epoch = itertools.count(1).__next__
        self._last_stats: Stats | None = None
        self._not_before = 0.0
        self._refusal = ""
        self.stats = LineStats()
        self.last_loss = ""
        """Why the last line was lost."""
        self._step_spans: deque[tuple[float, float, int]] = deque(maxlen=_KEPT_SPANS)

    @property
    def is_ready(self) -> bool:
        return self._line is not None and self._line.state is LineState.READY

    @property
    def refusal(self) -> str:
        """Why the draft will never work with this engine; empty if it may."""
        return self._refusal

    def follow(self, seq_id: int, sampling: SamplingRow, max_len: int) -> None:
        """Speculates for a sequence from here on."""
        if seq_id in self._followed:
            return
        followed = _Followed([*sampling.prompt, *sampling.output], sampling, max_len)
        self._followed[seq_id] = followed
        if self.is_ready:
            self._open(seq_id, followed)
            self.flush()

    def forget(self, seq_id: int) -> None:
        followed = self._followed.pop(seq_id, None)
        if followed is not None and followed.mirror is not None:
            self._post(Close(seq_id, followed.mirror.epoch))
            self.flush()

    def forget_all(self) -> None:
        for seq_id in list(self._followed):
            self.forget(seq_id)

    def outcome(self, seq_id: int, tokens: Sequence[int]) -> Knowledge:
        """A verification has ended: what is known about what follows?"""
        followed = self._followed.get(seq_id)
        if followed is None:
            return Knowledge.UNHEARD
        followed.tokens.extend(tokens)
        mirror = followed.mirror
        if mirror is None or not self._is_sayable(seq_id, followed, tokens):
            return Knowledge.UNHEARD
        knowledge = mirror.advance(tokens)
        self._post(Outcome(seq_id, mirror.epoch, mirror.n, list(tokens), mirror.num_frames))
        if mirror.is_torn and mirror.n - followed.asked_at >= _ROUNDS_BETWEEN_RESYNCS:
            followed.asked_at = mirror.n
            self.stats.num_resyncs += 1
            self._post(Resync(seq_id, mirror.epoch))
        return knowledge

    def speculation(self, seq_id: int, limit: int) -> Path:
        followed = self._followed.get(seq_id)
        if followed is None or followed.mirror is None or followed.mirror.is_torn:
            return Path()
        return followed.mirror.speculation(limit)

    def poll(self, timeout: float = 0.0) -> None:
        """Takes in what has arrived, waiting at most so long for it; mends the line where it is broken."""
        if self._successor is not None:
            self._poll_successor(*self._successor)
        if self._line is None:
            self._connect()
            return
        broken = self._source.is_broken()
        if broken:
            self._line.lose(broken)
        was_ready = self.is_ready
        for message in self._line.receive(timeout):
            self._take(message)
        if self._line.state is LineState.REFUSED:
            self._refusal = self._line.reason
        if self._line.state in (LineState.LOST, LineState.REFUSED):
            self._drop_line()
        elif self.is_ready and not was_ready:
            self._reopen_all()

    def flush(self) -> None:
        """Sends what has been said since the last time."""
        if self._line is not None:
            self._line.flush()

    def wait(self, seq_ids: Iterable[int], timeout: float) -> None:
        """Until something is known of one of the sequences, but no longer than so many seconds."""
        waiting, deadline = list(seq_ids), self._clock() + timeout
        while self.is_ready and not any(self.speculation(each, 1).tokens for each in waiting):
            left = deadline - self._clock()
            if left <= 0:
                return
            self.poll(left)

    def wait_until_ready(self, timeout: float) -> None:
        """Until the draft is there, has refused, is lost or the time is over."""
        deadline = self._clock() + timeout
        while not self.is_ready and not self.refusal and not self.last_loss and self._clock() < deadline:
            self.poll(0.1)

    def replace(self, source: LineSource) -> None:
        """Another draft takes over once it is ready; until then, and if it never is, the old one goes on."""
        self._drop_successor()
        line = source.connect()
        if line is not None:
            self._successor = (source, line)

    def take_step_spans(self) -> list[tuple[float, float, int]]:
        """Start, end and rows of the draft's latest steps, since the last call."""
        spans = list(self._step_spans)
        self._step_spans.clear()
        return spans

    def close(self) -> None:
        self._drop_successor()
        if self._line is not None:
            self._line.close()
        self._source.close()

    def _poll_successor(self, source: LineSource, line: Connection) -> None:
        broken = source.is_broken()
        if broken:
            line.lose(broken)
        for _message in line.receive():
            pass  # Before it is told anything it has nothing to tell but HELLO.
        if line.state in (LineState.LOST, LineState.REFUSED):
            logger.warning("the draft is not replaced: %s", line.reason)
            self._drop_successor()
        elif line.state is LineState.READY:
            self._successor = None
            self._switch(source, line)

    def _switch(self, source: LineSource, line: Connection) -> None:
        if self._line is not None:
            for seq_id, followed in self._followed.items():
                if followed.mirror is not None:
                    self._post(Close(seq_id, followed.mirror.epoch))
            self.flush()
            self._line.close()
        self._source.close()
        self._source, self._line, self._last_stats = source, line, None
        self._forget_mirrors()
        self._reopen_all()

    def _drop_successor(self) -> None:
        if self._successor is not None:
            source, line = self._successor
            self._successor = None
            line.close()
            source.close()

    def _connect(self) -> None:
        if self._clock() < self._not_before:
            return
        try:
            self._line = self._source.connect()
        except (OSError, ValueError) as error:
            # No process, socket, folder or key to be had just now: the target goes on alone.
            logger.warning("no line to a draft: %s", error)
            self.last_loss, self._not_before = str(error), self._clock() + _RETRY_SECONDS

    def _drop_line(self) -> None:
        if self._line is None:
            return
        logger.warning("speculation is off: %s", self._line.reason)
        self.stats.num_losses += 1
        self.last_loss = self._line.reason
        self._line.close()
        self._line = None
        self._last_stats = None
        self._forget_mirrors()

    def _forget_mirrors(self) -> None:
        for followed in self._followed.values():
            followed.mirror = None
            followed.is_declined = False

    def _reopen_all(self) -> None:
        self.stats.num_connects += 1
        self._refusal = ""
        if self._line is not None:
            logger.info("speculation is on: %s drafts", self._line.name)
        for seq_id, followed in self._followed.items():
            self._open(seq_id, followed)
        self.flush()

    def _is_sayable(self, seq_id: int, followed: _Followed, tokens: Sequence[int]) -> bool:
        """False, and the sequence goes on alone, where it holds tokens that the draft does not have."""
        if self._line is None or max(tokens) < self._line.vocab_size:
            return True
        if followed.mirror is not None:
            self._post(Close(seq_id, followed.mirror.epoch))
        self._decline(seq_id, followed, "it holds tokens the draft does not know")
        return False

    def _decline(self, seq_id: int, followed: _Followed, reason: str) -> None:
        logger.info("sequence %d goes on without speculation: %s", seq_id, reason)
        self.stats.num_declined += 1
        followed.mirror, followed.is_declined = None, True

    def _open(self, seq_id: int, followed: _Followed) -> None:
        if followed.is_declined or not self._is_sayable(seq_id, followed, followed.tokens):
            return
        epoch = self._next_epoch()
        followed.mirror = Mirror(epoch, followed.tokens[-1])
        followed.asked_at = -_ROUNDS_BETWEEN_RESYNCS
        sampling = followed.sampling
        self._post(
            Open(
                seq=seq_id,
                epoch=epoch,
                tokens=pack_ints(followed.tokens),
                num_prompt=len(sampling.prompt),
                max_len=followed.max_len,
                lookahead=self._lookahead,
                sampling=self._wire_sampling(sampling),
            )
        )

    def _wire_sampling(self, row: SamplingRow) -> Sampling:
        vocab_size = self._line.vocab_size if self._line is not None else MAX_ID
        return wire_sampling(row, vocab_size, ratio=self._ratio, saguaro=self._saguaro)

    def _take(self, message: AnyMessage) -> None:
        match message:
            case Nodes():
                self.stats.num_frames += 1
                followed = self._followed.get(message.seq)
                if followed is not None and followed.mirror is not None:
                    followed.mirror.take(message)
            case Resync():
                followed = self._current(message.seq, message.epoch)
                if followed is not None:
                    self.stats.num_resyncs += 1
                    self._open(message.seq, followed)
                    self.flush()
            case Close():
                followed = self._current(message.seq, message.epoch)
                if followed is not None:
                    self._decline(message.seq, followed, message.reason)
            case Stats():
                self._note_stats(message)

    def _current(self, seq_id: int, epoch: int) -> _Followed | None:
        """The sequence, if the epoch is the one it is open under: an older one's words mean nothing."""
        followed = self._followed.get(seq_id)
        is_current = followed is not None and followed.mirror is not None and followed.mirror.epoch == epoch
        return followed if is_current else None

    def _note_stats(self, stats: Stats) -> None:
        last, self._last_stats = self._last_stats, stats
        self.stats.num_sequences, self.stats.kv_usage = stats.num_sequences, stats.kv_usage
        if last is None:
            return  # What it did for others, or before, is not this engine's.
        steps, seconds = stats.num_steps - last.num_steps, stats.seconds - last.seconds
        if steps > 0:
            self.stats.num_steps += steps
            self.stats.draft_seconds += seconds
            self.stats.step_seconds = seconds / steps
        self._step_spans.extend(stats.step_spans)

    def _post(self, message: AnyMessage) -> None:
        if self._line is not None and self.is_ready:
            self._line.post(message)
