"""The line to whoever drafts: found, kept, mended and replaced, while a host goes on with its work.

It outlives the contacts that it is made of: when one is lost, another is made. The host reads where it waits
anyway. Whatever may take time (making contact, starting a process, closing) is done by `tend`, which a thread
of its own calls (keeper.py), and which reads only while the host is idle or the other side has not greeted
yet: Python's lock never stands in the way of a launch.

Knows contacts and who listens to them. Does not know processes (the source does), trees or tokens.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ssd.draft.contact import Contact, ContactState
from ssd.draft.keeper import Keeper
from ssd.draft.messages import AnyMessage

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_RETRY_AFTER_REFUSAL_SECONDS = 30.0
"""A draft of another family does not change its mind, but it may be replaced."""
_IDLE_SECONDS = 0.1
"""A host that has not come for so long has nothing to do."""
_FRAMES_WHILE_IDLE = 8
"""Read at a time for an idle host: one that comes back does not wait for more."""


class DraftSource(Protocol):
    """Where a draft is to be had (sources.py)."""

    def make_contact(self) -> Contact | None:
        """A new one, or None while it is too early for it."""
        ...

    def is_broken(self) -> str:
        """Why the contact cannot last, as far as the source knows: a process that ended. Empty: it can."""
        ...

    def close(self) -> None: ...


class _Nowhere:
    def make_contact(self) -> Contact | None:
        return None

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Listener(Protocol):
    """Called with the line's lock held."""

    def greeted(self) -> None:
        """A draft is there, and knows nothing yet."""
        ...

    def lost(self) -> None:
        """Whoever was there is gone, with everything it knew."""
        ...

    def take(self, message: AnyMessage) -> None: ...

    def leave(self) -> None:
        """Another draft takes over: what is open is to be closed."""
        ...


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
    is_resting: bool = False
    """Nothing is told to the draft for a while: hardly any of its tokens was accepted."""


class Line:
    def __init__(
        self, source: DraftSource, listener: Listener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = source
        self._listener = listener
        self.clock = clock
        self.lock = threading.RLock()
        """Held for what is quick: the host may come at any time."""
        self._tending = threading.Lock()
        self._keeper: Keeper | None = None
        self.contact: Contact | None = None
        self._successor: tuple[DraftSource, Contact] | None = None
        """Another draft that is about to take over."""
        self._finished: list[Contact] = []
        """To be closed, which may take a moment."""
        self._not_before = 0.0
        self._has_greeted = False
        self._last_read = clock()
        self.stats = LineStats()
        self._watchers: list[Callable[[bool], None]] = []
        self.refusal = ""
        """Why the draft will never work with this engine; empty if it may."""
        self.last_loss = ""
        """Why the last contact was lost."""

    @property
    def is_ready(self) -> bool:
        contact = self.contact  # Read once: another thread may drop it.
        return contact is not None and contact.state is ContactState.READY

    def start(self) -> None:
        """From here on a thread tends the line, whatever the host does."""
        if self._keeper is None:
            self._keeper = Keeper(self)

    def watch(self, told: Callable[[bool], None]) -> None:
        """Tells at once, also while the host is idle, whether the draft is there; with the lock held."""
        self._watchers.append(told)

    def post(self, message: AnyMessage) -> None:
        if self.contact is not None and self.is_ready:
            self.contact.post(message)

    def flush(self) -> None:
        """Sends what has been posted since the last time."""
        if self.contact is not None:
            self.contact.flush()

    def read(self, timeout: float = 0.0) -> None:
        """For the host: hands on what has arrived, waiting at most so long for it."""
        with self.lock:
            self._last_read = self.clock()
            self._read(timeout)

    def wait_until_ready(self, timeout: float) -> None:
        """Until the draft is there, has refused, is lost or the time is over."""
        deadline = self.clock() + timeout
        while not self.is_ready and not self.refusal and not self.last_loss and self.clock() < deadline:
            self.tend()
            if self.contact is None:
                time.sleep(0.01)
            self.read(0.1)

    def replace(self, source: DraftSource) -> None:
        """Another draft takes over once it is ready; until then, and if it never is, the old one goes on."""
        contact = source.make_contact()
        with self._tending:
            self._drop_successor()
            if contact is not None:
                self._successor = (source, contact)

    def tend(self) -> None:
        """Mends what is broken, and reads for a host that is idle."""
        if not self._tending.acquire(blocking=False):
            return
        try:
            self._close_finished()
            if self._successor is not None:
                self._tend_successor(*self._successor)
            if self.contact is None:
                self._make_contact()
                return
            broken = self.source.is_broken()
            with self.lock:
                if broken and self.contact is not None:
                    self.contact.lose(broken)
                if broken or not self.is_ready or self.clock() - self._last_read > _IDLE_SECONDS:
                    self._read(0.0, most=_FRAMES_WHILE_IDLE)
        finally:
            self._tending.release()

    def lose(self, reason: str) -> None:
        """Gives the contact up; the next one may be better."""
        with self.lock:
            if self.contact is not None:
                self.contact.lose(reason)
                self._drop()

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        with self._tending, self.lock:
            self._drop_successor()
            source, self.source = self.source, _Nowhere()
            if self.contact is not None:
                self._finished.append(self.contact)
            self.contact = None
            self._close_finished()
            source.close()

    def abandon(self) -> None:
        """In a forked child: line, process and thread are the parent's."""
        self.lock, self._tending, self._keeper = threading.RLock(), threading.Lock(), None
        self.contact, self._successor, self.source, self._finished = None, None, _Nowhere(), []
        self._listener.lost()

    def _read(self, timeout: float, **limits: int) -> None:
        contact = self.contact
        if contact is None:
            return
        was_ready = self.is_ready
        try:
            for message in contact.receive(timeout, **limits):
                self._listener.take(message)
        except Exception as error:
            # Whatever a draft says costs at most this contact.
            logger.exception("what the draft says cannot be taken in")
            contact.lose(f"{type(error).__name__}: {error}")
        if contact.state is ContactState.REFUSED:
            self.refusal = contact.reason
            self._not_before = self.clock() + _RETRY_AFTER_REFUSAL_SECONDS
        if contact.state in (ContactState.LOST, ContactState.REFUSED):
            self._drop()
        elif self.is_ready and not was_ready:
            self._greeted(contact)

    def _greeted(self, contact: Contact) -> None:
        self.stats.num_connects += 1
        self._has_greeted = True
        self.refusal = ""
        logger.info("speculation is on: %s drafts", contact.name)
        self._listener.greeted()
        self.flush()
        self._tell_watchers(is_there=True)

    def _drop(self) -> None:
        if self.contact is None:
            return
        # One that never was there is not lost again with every try.
        if self._has_greeted or self.contact.reason != self.last_loss:
            logger.warning("speculation is off: %s", self.contact.reason)
        self.stats.num_losses += self._has_greeted
        self._has_greeted = False
        self.last_loss = self.contact.reason
        self._finished.append(self.contact)
        self.contact = None
        self._listener.lost()
        self._tell_watchers(is_there=False)

    def _tell_watchers(self, *, is_there: bool) -> None:
        for told in self._watchers:
            told(is_there)

    def _make_contact(self) -> None:
        if self.clock() < self._not_before:
            return
        try:
            contact = self.source.make_contact()
        except (OSError, ValueError) as error:
            # No process, socket, folder or key to be had just now: the target goes on alone.
            logger.warning("no line to a draft: %s", error)
            self.last_loss, self._not_before = str(error), self.clock() + _RETRY_SECONDS
            return
        with self.lock:
            self.contact = contact

    def _tend_successor(self, source: DraftSource, contact: Contact) -> None:
        broken = source.is_broken()
        if broken:
            contact.lose(broken)
        for _message in contact.receive():
            pass  # Before it is told anything it has nothing to tell but HELLO.
        if contact.state in (ContactState.LOST, ContactState.REFUSED):
            logger.warning("the draft is not replaced: %s", contact.reason)
            self._drop_successor()
        elif contact.state is ContactState.READY:
            self._successor = None
            self._switch(source, contact)

    def _switch(self, source: DraftSource, contact: Contact) -> None:
        with self.lock:
            if self.contact is not None:
                self._listener.leave()
                self.flush()
                self._finished.append(self.contact)
            before, self.source, self.contact = self.source, source, contact
            self._listener.lost()
            self._greeted(contact)
        self._close_finished()
        before.close()

    def _drop_successor(self) -> None:
        if self._successor is not None:
            source, contact = self._successor
            self._successor = None
            contact.close()
            source.close()

    def _close_finished(self) -> None:
        while self._finished:
            self._finished.pop().close()
