"""Unread increments of one caller, in bounded memory however slow the caller is.

Unread increments of a sequence are joined into one, so at most the request's output is kept. Knows
increments and the end of a request. Does not know processes.
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
        """Called when the request has ended, before anything is read."""
        self._news = asyncio.Event()
        self.is_abandoned = False
        """The caller has left, and the request was aborted."""

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
        """The next increment, or the output once all are read; raises the error that ended the request."""
        while not self._pending:
            if isinstance(self._end, Exception):
                raise self._end
            if self._end is not None:
                return self._end
            self._news.clear()
            await self._news.wait()
        return self._pending.pop(next(iter(self._pending)))


def joined(first: Increment, second: Increment) -> Increment:
    """Two successive increments of one sequence as one."""
    scored = first.logprobs is not None and second.logprobs is not None
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=(first.logprobs or ()) + (second.logprobs or ()) if scored else None,
        origins=first.origins + second.origins,
        trees=first.trees + second.trees,
    )
