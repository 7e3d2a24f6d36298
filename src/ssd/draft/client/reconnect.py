"""Reconnects to drafts: the thread that does it while the target is idle, and the backoff between attempts.

The thread lives as long as the pool that it serves: until told to stop, until the pool is gone, or until the
program's main thread has ended, and then it closes the pool. A forked child has neither this thread nor
connections. Delays are drawn at random between zero and a growing bound, so that the targets of a draft that
comes back do not all connect at once. Knows threads, forks and clocks; no messages.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.05


class Reconnectable(Protocol):
    """A pool of drafts, as the reconnect thread sees it."""

    def tend(self) -> None: ...

    def lose(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Reconnector(Protocol):
    """Calls `tend` every few milliseconds until it is stopped. Outside tests this is the reconnect thread."""

    def stop(self) -> None: ...


_open_pools: "weakref.WeakSet[Reconnectable]" = weakref.WeakSet()


class ReconnectThread:
    def __init__(self, kept: Reconnectable) -> None:
        self._is_over = threading.Event()
        _open_pools.add(kept)
        # A weak reference, so that a pool that nobody uses can be collected.
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(kept), self._is_over), name="ssd-draft-reconnect"
        )
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _run(reference: "weakref.ref[Reconnectable]", is_over: threading.Event) -> None:
    while not is_over.wait(_TICK_SECONDS):
        kept = reference()
        if kept is None:
            return
        try:
            if not threading.main_thread().is_alive():
                kept.close()
                return
            kept.tend()
        except Exception as error:
            logger.exception("reconnecting failed; all connections are dropped")
            kept.lose(f"{type(error).__name__}: {error}")
        del kept


def _fall_silent() -> None:
    for each in list(_open_pools):
        each.abandon()


os.register_at_fork(after_in_child=_fall_silent)


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
