"""What one caller has yet to read: bounded, however slow the caller is.

Increments that are not read in time are joined to one for each sequence, so at most the request's own
output is kept. Knows increments and the end of a request; nothing of processes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ssd.engine.outputs import Increment, RequestOutput


class Inbox:
    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._pending: dict[int, Increment] = {}
        self._end: RequestOutput | Exception | None = None
        self._on_end = on_end
        """Called when the end is here, though nobody may have read it."""
        self._news = asyncio.Event()
        self.is_abandoned = False
        """Its caller is gone, and the engine has been told."""

    def put(self, increment: Increment) -> None:
        earlier = self._pending.get(increment.index)
        self._pending[increment.index] = increment if earlier is None else joined(earlier, increment)
        self._news.set()

    def end(self, how: RequestOutput | Exception) -> None:
        self._end = how
        self._news.set()
        if self._on_end is not None:
            self._on_end()

    async def get(self) -> Increment | RequestOutput:
        """The next increment, or the output once all have been read; raises what ended the request."""
        while not self._pending:
            if isinstance(self._end, Exception):
                raise self._end
            if self._end is not None:
                return self._end
            self._news.clear()
            await self._news.wait()
        return self._pending.pop(next(iter(self._pending)))


def joined(first: Increment, second: Increment) -> Increment:
    """Two increments of one sequence, as if they had come in one."""
    scored = first.logprobs is not None and second.logprobs is not None
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=(first.logprobs or ()) + (second.logprobs or ()) if scored else None,
        origins=first.origins + second.origins,
        trees=first.trees + second.trees,
    )
