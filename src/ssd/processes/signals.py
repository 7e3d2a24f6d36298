"""Records signals that ask a process to end, for a loop that polls them.

Knows signals. Does not know how the loop reacts.
"""

import signal
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

ENDINGS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    def __init__(self, numbers: Sequence[int] = ENDINGS) -> None:
        """Until `close`, records these signals instead of ending the process. For the main thread only."""
        # A handler may interrupt `wait`: SimpleQueue is the only queue that is reentrant.
        self._new: SimpleQueue[int] = SimpleQueue()
        self._received: list[int] = []
        self._before = {number: signal.signal(number, self._note) for number in numbers}

    def have_come(self) -> bool:
        return bool(self._received) or not self._new.empty()

    def wait(self, seconds: float) -> list[int]:
        """All signals so far; returns early when another one arrives."""
        with suppress(Empty):
            self._received.append(self._new.get(timeout=seconds))
        return list(self._received)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self._new.put(number)
