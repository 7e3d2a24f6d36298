"""Who may come in: the bounded queue, and the doors that close when the server ends.

Counts sequences, since those are what the engine seats: while it has them, not while their answers are read.
Those that come with others of one request have half of the room, so that they keep nobody else out.
Knows no HTTP beyond the refusals it raises.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ssd.engine.request import Request
from ssd.server.errors import ApiError
from ssd.worker.client import EngineClient

_RETRY = {"Retry-After": "1"}


class Gate:
    def __init__(self, client: EngineClient, *, max_queue: int) -> None:
        self._client = client
        self._max_inside = client.config.max_num_seqs + max_queue
        self._inside: dict[str, tuple[int, int]] = {}
        """Of each request that the engine has not finished, how many are the first of those that came with
        them, and how many are not."""
        self._num_preparing = 0
        """Requests that are being read, tokenised, or wait for their grammar."""
        self._num_answers = 0
        """That are not told to the end."""
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False

    @property
    def is_empty(self) -> bool:
        """No answer is under way."""
        return self._is_empty.is_set()

    def check_open(self) -> None:
        """Raises unless the engine can be asked anything."""
        if self.is_draining:
            raise ApiError(503, "the server is about to end: try another", code="draining", headers=_RETRY)
        if self._client.state == "loading":
            raise ApiError(503, "the model is still loading: try again soon", code="loading", headers=_RETRY)
        if self._client.state == "dead":
            raise ApiError(503, "the engine is dead: the server ends", code="engine_dead")

    def check_room(self) -> None:
        """Raises unless a request could come in now: before any work is done for it."""
        self.check_open()
        num_first, num_further = (sum(counts) for counts in zip((0, 0), *self._inside.values(), strict=True))
        num_inside = num_first + min(num_further, self.most_at_once) + self._num_preparing
        if num_inside >= self._max_inside:
            raise _is_full(num_inside)

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Room for one, while it is found out what it needs."""
        self.check_room()
        self._num_preparing += 1
        try:
            yield
        finally:
            self._num_preparing -= 1

    @contextmanager
    def enter(self, requests: Sequence[Request]) -> Iterator[None]:
        """Room for their sequences until the engine has finished them, at most while the block lasts."""
        # Whoever comes while there is room for one comes in whole, so that large requests are never starved.
        self.check_room()
        counts = [(int(not number), each.params.n - (not number)) for number, each in enumerate(requests)]
        num_further = sum(further for _, further in self._inside.values())
        if any(further for _, further in counts) and num_further >= self.most_at_once:
            raise _is_full(num_further)
        self._inside.update(zip((each.request_id for each in requests), counts, strict=True))
        self._num_answers += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            for request in requests:
                self.leave(request)
            self._num_answers -= 1
            if not self._num_answers:
                self._is_empty.set()

    @property
    def most_at_once(self) -> int:
        """Sequences of one request: beside them there is room for others."""
        return max(1, self._max_inside // 2)

    def leave(self, request: Request) -> None:
        self._inside.pop(request.request_id, None)

    async def drain(self, seconds: float) -> None:
        """Lets nobody in any more; those inside have so many seconds, then they are aborted."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._is_empty.wait(), seconds)
        except TimeoutError:
            for request_id in self._inside:
                self._client.abort(request_id)


def _is_full(num_inside: int) -> ApiError:
    message = f"{num_inside} sequences run or wait, and no more are taken: try again soon"
    return ApiError(429, message, code="queue_full", headers=_RETRY)
