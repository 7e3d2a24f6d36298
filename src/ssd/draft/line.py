"""The line to whoever drafts: found, kept, mended and replaced, while a host goes on with its work.

It has a strand for each draft that is to be had (strand.py): one, where one address was given. It outlives
them and the contacts that they are made of. The host reads where it waits anyway. Whatever may take time
(making contact, starting a process, closing) is done by `tend`, which a thread of its own calls (keeper.py),
and which reads only while the host is idle or the other side has not greeted yet: Python's lock never stands
in the way of a launch.

Knows strands and who listens to them. Does not know processes (the source does), trees or tokens.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ssd.draft.contact import Contact
from ssd.draft.keeper import Keeper
from ssd.draft.messages import AnyMessage
from ssd.draft.sources import FixedSources
from ssd.draft.strand import DraftSource, Sources, Strand

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 0.1
"""A host that has not come for so long has nothing to do."""
_FRAMES_WHILE_IDLE = 8
"""Read at a time for an idle host: one that comes back does not wait for more."""
_TURN_SECONDS = 0.001
"""How long one of several drafts is waited for before the others are looked at."""


class Listener(Protocol):
    """Called with the line's lock held."""

    def greeted(self, strand: Strand) -> None:
        """A draft is there, and knows nothing yet."""
        ...

    def lost(self, strand: Strand) -> None:
        """Whoever was there is gone, with everything it knew."""
        ...

    def take(self, message: AnyMessage, strand: Strand) -> None: ...

    def leave(self, strand: Strand) -> None:
        """Others take over: what is open there is to be closed, and opened with them."""
        ...

    def hand_on(self, strand: Strand) -> int:
        """All of its sequences that another would take are to go there; how many went."""
        ...

    def lighten(self, strand: Strand) -> None:
        """One of its sequences is to go to another."""
        ...


@dataclass(slots=True)
class LineStats:
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
    """Open at the drafts, for whichever engine, by their latest word."""
    kv_usage: float = 0.0
    """Of the fullest draft."""
    tenant: str = ""
    """By which name drafts know this host's key; empty where it has none."""
    num_own_rows: int = 0
    """Of draft steps, computed for that tenant."""
    is_resting: bool = False
    """Nothing is told to the draft for a while: hardly any of its tokens was accepted."""
    num_ready: int = 0
    """Drafts that are there."""
    num_moved: int = 0
    """Times a sequence went to another draft, because its own was lost, left or stalled."""


class Line:
    def __init__(
        self,
        sources: Sources,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw`: the next random number from 0 to 1, for the time until a lost draft is tried again."""
        self._sources = sources
        self._listener = listener
        self.clock, self._draw = clock, draw
        self.lock = threading.RLock()
        """Held for what is quick: the host may come at any time."""
        self._tending = threading.Lock()
        self._keeper: Keeper | None = None
        self.strands: tuple[Strand, ...] = tuple(map(self._strand, sources.current()))
        """Replaced as a whole: another thread may be reading it."""
        self._finished: list[Contact | DraftSource | Sources] = []
        """To be closed, which may take a moment."""
        self._last_read = clock()
        self.stats = LineStats()
        self._watchers: list[Callable[[bool], None]] = []
        self._trial: Sources | None = None
        """Other drafts that are about to take over."""

    @property
    def ready(self) -> list[Strand]:
        return [strand for strand in self.strands if strand.is_ready]

    @property
    def is_ready(self) -> bool:
        return any(strand.is_ready for strand in self.strands)

    @property
    def refusal(self) -> str:
        """Why no draft will ever work with this engine; empty if one may."""
        refusals = [strand.refusal for strand in self.strands]
        return refusals[0] if refusals and all(refusals) else ""

    @property
    def last_loss(self) -> str:
        """Why there is no contact with any draft; empty while one is still looked for."""
        losses = [strand.last_loss for strand in self.strands]
        return losses[0] if losses and all(losses) else "" if losses else self._sources.problem()

    def start(self) -> None:
        """From here on a thread tends the line, whatever the host does."""
        if self._keeper is None:
            self._keeper = Keeper(self)

    def watch(self, told: Callable[[bool], None]) -> None:
        """Tells at once, also while the host is idle, whether a draft is there; with the lock held."""
        self._watchers.append(told)

    def flush(self) -> None:
        """Sends what has been posted since the last time."""
        for strand in self.strands:
            strand.flush()

    def read(self, timeout: float = 0.0) -> None:
        """For the host: hands on what has arrived, waiting at most so long for it."""
        with self.lock:
            self._last_read = self.clock()
            strands = self.strands
            if len(strands) == 1:
                self._read(strands[0], timeout)
            else:
                self._read_all(strands, timeout)

    def wait_until_ready(self, timeout: float) -> None:
        """Until a draft is there, all have refused or are lost, or the time is over."""
        deadline = self.clock() + timeout
        while not self.is_ready and not self.refusal and not self.last_loss and self.clock() < deadline:
            self.tend()
            if all(strand.contact is None for strand in self.strands):
                time.sleep(0.01)
            self.read(0.1)

    def replace(self, sources: Sources) -> None:
        """Others take over once one is ready; until then, and if none ever is, those of before go on."""
        made = [(source, source.make_contact()) for source in sources.current()]
        with self._tending:
            with self.lock:
                self._end_trial()
                self._trial = sources
                on_trial = [self._strand(source, contact, is_on_trial=True) for source, contact in made]
                self.strands = (*self.strands, *on_trial)
            self._close_finished()

    def tend(self) -> None:
        """Mends what is broken, and reads for a host that is idle."""
        if not self._tending.acquire(blocking=False):
            return
        try:
            self._close_finished()
            self._follow_sources()
            for strand in self.strands:
                self._tend(strand)
        finally:
            self._tending.release()

    def lose(self, reason: str) -> None:
        """Gives all contacts up; the next ones may be better."""
        with self.lock:
            for strand in self.strands:
                if strand.contact is not None:
                    strand.contact.lose(reason)
                    self._drop(strand)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        with self._tending, self.lock:
            self._end_trial()
            self._finish(self.strands)
            self._finished.append(self._sources)
            self._sources = FixedSources()
            self._close_finished()

    def abandon(self) -> None:
        """In a forked child: line, process and thread are the parent's."""
        self.lock, self._tending, self._keeper = threading.RLock(), threading.Lock(), None
        strands, self.strands, self._sources, self._finished = self.strands, (), FixedSources(), []
        for strand in strands:
            strand.contact = None
            self._listener.lost(strand)

    def _strand(
        self, source: DraftSource, contact: Contact | None = None, *, is_on_trial: bool = False
    ) -> Strand:
        return Strand(source, self.clock, contact, is_on_trial=is_on_trial, draw=self._draw)

    def _read_all(self, strands: Sequence[Strand], timeout: float) -> None:
        """Each for a moment, in turns, until one has said something."""
        deadline = self.clock() + timeout
        while True:
            num_heard = sum([self._read(each, 0.0) for each in strands])
            left = deadline - self.clock()
            if num_heard or left <= 0:
                return
            waiting = next((each for each in strands if each.contact is not None), None)
            if waiting is None:
                return
            if self._read(waiting, min(left, _TURN_SECONDS)):
                deadline = self.clock()

    def _read(self, strand: Strand, timeout: float, **limits: int) -> int:
        """How many messages there were."""
        contact, num_heard = strand.contact, 0
        if contact is None:
            return 0
        was_ready = strand.is_ready
        try:
            for message in contact.receive(timeout, **limits):
                num_heard += 1
                strand.note_heard()
                self._listener.take(message, strand)
        except Exception as error:
            # Whatever a draft says costs at most this contact.
            logger.exception("what the draft says cannot be taken in")
            contact.lose(f"{type(error).__name__}: {error}")
        if strand.is_over:
            self._drop(strand)
        elif strand.is_ready and not was_ready:
            self._greeted(strand, contact)
        return num_heard

    def _greeted(self, strand: Strand, contact: Contact) -> None:
        was_alone = len(self.ready) == 1
        self.stats.num_connects += 1
        strand.note_greeted()
        self.stats.num_ready = len(self.ready)
        logger.info("speculation is on: %s drafts", contact.name)
        if strand.is_on_trial:
            self._take_over()
        self._listener.greeted(strand)
        self.flush()
        if was_alone:
            self._tell_watchers(is_there=True)

    def _drop(self, strand: Strand) -> None:
        had_greeted, before = strand.has_greeted, strand.last_loss
        contact = strand.drop()
        if contact is None:
            return
        self._finished.append(contact)
        if strand.is_on_trial:
            logger.warning("the draft is not replaced: %s", contact.reason)
            self._finish([strand])
            if not any(each.is_on_trial for each in self.strands):
                self._end_trial()
            return
        self.stats.num_ready = len(self.ready)
        is_off = not self.is_ready
        # One that never was there is not lost again with every try.
        if had_greeted or contact.reason != before:
            logger.warning("%s: %s", "speculation is off" if is_off else "a draft is lost", contact.reason)
        self.stats.num_losses += had_greeted
        self._listener.lost(strand)
        self.flush()
        if is_off:
            self._tell_watchers(is_there=False)

    def _tell_watchers(self, *, is_there: bool) -> None:
        for told in self._watchers:
            told(is_there)

    def _tend(self, strand: Strand) -> None:
        if strand.contact is None:
            self._note_end(strand)
            contact = strand.new_contact()
            with self.lock:
                if strand in self.strands:
                    strand.contact = contact
                elif contact is not None:
                    self._finished.append(contact)  # Left by the host meanwhile.
            return
        broken = strand.source.is_broken()
        with self.lock:
            broken = broken or strand.overfull()
            if broken and strand.contact is not None:
                strand.contact.lose(broken)
            if broken or not strand.is_ready or self.clock() - self._last_read > _IDLE_SECONDS:
                self._read(strand, 0.0, most=_FRAMES_WHILE_IDLE)
            if strand.num_followed and len(self.strands) > 1:
                self._relieve(strand)

    def _note_end(self, strand: Strand) -> None:
        """A process that ended hangs up first; why it ended is known a moment later."""
        reason = strand.source.is_broken()
        if reason and reason not in strand.last_loss:
            logger.warning("why it was lost: %s", reason)
            strand.last_loss = reason

    def _relieve(self, strand: Strand) -> None:
        """One that does not answer, or not in time, hands on what it has, if there is another that does."""
        if strand.is_stalled and self._has_another(strand):
            if self._listener.hand_on(strand):
                logger.warning("a draft has stalled: its sequences go to another")
        elif strand.is_late and any(each.is_prompt for each in self.ready):
            strand.note_lightened()
            self._listener.lighten(strand)
        self.flush()

    def _has_another(self, strand: Strand) -> bool:
        return any(each is not strand and not each.is_stalled for each in self.ready)

    def _follow_sources(self) -> None:
        """New drafts are looked for; those that are no longer named are left, once there is another."""
        current = self._sources.current()
        on_trial = self._trial.current() if self._trial is not None else ()
        with self.lock:
            known = [strand.source for strand in self.strands]
            new = [self._strand(source) for source in current if source not in known]
            new += [self._strand(each, is_on_trial=True) for each in on_trial if each not in known]
            self.strands = (*self.strands, *new)
            for strand in self.strands:
                is_named = strand.is_on_trial or strand.source in current
                if not is_named and (not strand.is_ready or self._has_another(strand)):
                    self._leave(strand)

    def _take_over(self) -> None:
        """Those on trial are the line's own from here on; those of before are left."""
        before = [strand for strand in self.strands if not strand.is_on_trial]
        self._finished.append(self._sources)
        if self._trial is not None:
            self._sources, self._trial = self._trial, None
        for strand in self.strands:
            strand.is_on_trial = False
        for strand in before:
            self._leave(strand)

    def _leave(self, strand: Strand) -> None:
        self._listener.leave(strand)
        self.flush()
        self._finish([strand])

    def _end_trial(self) -> None:
        self._finish([strand for strand in self.strands if strand.is_on_trial])
        if self._trial is not None:
            self._finished.append(self._trial)
            self._trial = None

    def _finish(self, strands: Sequence[Strand]) -> None:
        """Takes them from the line; whatever is left of them is closed later."""
        self.strands = tuple(each for each in self.strands if each not in strands)
        for strand in strands:
            contact, strand.contact = strand.contact, None
            self._finished += [strand.source] if contact is None else [contact, strand.source]
        self.stats.num_ready = len(self.ready)

    def _close_finished(self) -> None:
        while self._finished:
            self._finished.pop(0).close()
