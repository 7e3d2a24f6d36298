"""Signals that ask a process to end, noted for a loop that looks for them.

Knows signals. What is done about them is the loop's affair.
"""

import signal
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

ENDINGS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    def __init__(self, numbers: Sequence[int] = ENDINGS) -> None:
        """From here on, until `close`, they end nothing by themselves. For the main thread only."""
        # A handler runs amid anything, also amid `wait`: of all queues this one bears it.
        self._news: SimpleQueue[int] = SimpleQueue()
        self._came: list[int] = []
        self._before = {number: signal.signal(number, self._note) for number in numbers}

    def have_come(self) -> bool:
        return bool(self._came) or not self._news.empty()

    def wait(self, seconds: float) -> list[int]:
        """All so far; comes back early when another one does."""
        with suppress(Empty):
            self._came.append(self._news.get(timeout=seconds))
        return list(self._came)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self._news.put(number)
