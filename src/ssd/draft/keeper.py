"""The thread that looks after a line, so that speculation comes back although the host is idle.

It lives as long as what it keeps: until told to stop, until that is gone, or until the program's main thread
has ended, and then it closes what nobody closed. A forked child has no such thread and no line: there every
line falls silent. Knows threads and forks.
"""

import logging
import os
import threading
import weakref
from typing import Protocol

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.05


class Kept(Protocol):
    def tend(self) -> None: ...

    def lose(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


_kept: "weakref.WeakSet[Kept]" = weakref.WeakSet()


class Keeper:
    def __init__(self, kept: Kept) -> None:
        self._is_over = threading.Event()
        _kept.add(kept)
        # It holds no more than a weak reference: whoever is forgotten is not kept.
        self._thread = threading.Thread(
            target=_keep, args=(weakref.ref(kept), self._is_over), name="ssd-draft-line"
        )
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _keep(reference: "weakref.ref[Kept]", is_over: threading.Event) -> None:
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
            logger.exception("the contact with the draft is given up")
            kept.lose(f"{type(error).__name__}: {error}")
        del kept


def _fall_silent() -> None:
    for each in list(_kept):
        each.abandon()


os.register_at_fork(after_in_child=_fall_silent)
