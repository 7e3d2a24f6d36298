"""Admission control: bounds the number of queued sequences, and refuses requests while the server drains.

Counts sequences from admission until the engine has finished them, not until the client has read the answer.
The second and further sequences of requests (`n`, several prompts) share half of the queue, so that one large
request does not block others. Knows no HTTP beyond the errors it raises.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ssd.engine.request import Request
from ssd.server.errors import ApiError
from ssd.worker.async_llm import AsyncLLM

_RETRY = {"Retry-After": "1"}


class Gate:
    def __init__(self, llm: AsyncLLM, *, max_queue: int) -> None:
        self._llm = llm
        self._max_inside = llm.config.max_num_seqs + max_queue
        self._inside: dict[str, tuple[int, int]] = {}
        """By id of each unfinished request: 1 if it has the first sequence of its HTTP request, else 0,
        and how many further sequences it has."""
        self._num_preparing = 0
        """Requests that are being tokenised or wait for their grammar to compile."""
        self._num_answers = 0
        """Answers that are not completely sent."""
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False

    @property
    def is_empty(self) -> bool:
        """Whether no answer is being sent."""
        return self._is_empty.is_set()

    def check_open(self) -> None:
        """Raise ApiError unless the engine is ready and the server is not draining."""
        if self.is_draining:
            raise ApiError(503, "the server is shutting down: try another", code="draining", headers=_RETRY)
        if self._llm.state == "loading":
            raise ApiError(503, "the model is still loading: try again soon", code="loading", headers=_RETRY)
        if self._llm.state == "dead":
            raise ApiError(503, "the engine has died: the server is shutting down", code="engine_dead")

    def check_room(self) -> None:
        """Raise ApiError if the queue is full. Called before any work is done for a request."""
        self.check_open()
        num_first, num_further = (sum(counts) for counts in zip((0, 0), *self._inside.values(), strict=True))
        num_inside = num_first + min(num_further, self.most_at_once) + self._num_preparing
        if num_inside >= self._max_inside:
            raise _is_full(num_inside)

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Count one sequence while a request is prepared and its number of sequences is unknown."""
        self.check_room()
        self._num_preparing += 1
        try:
            yield
        finally:
            self._num_preparing -= 1

    @contextmanager
    def enter(self, requests: Sequence[Request]) -> Iterator[None]:
        """Count the requests' sequences until the engine has finished them or the block ends."""
        # A request is admitted whole if one sequence fits, so that large requests are never starved.
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
        """How many further sequences all requests may have together: half of the queue."""
        return max(1, self._max_inside // 2)

    def leave(self, request: Request) -> None:
        self._inside.pop(request.request_id, None)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, wait up to `seconds` for running ones, then abort those that are left."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._is_empty.wait(), seconds)
        except TimeoutError:
            for request_id in self._inside:
                self._llm.abort(request_id)


def _is_full(num_inside: int) -> ApiError:
    message = f"the queue is full ({num_inside} sequences run or wait): try again soon"
    return ApiError(429, message, code="queue_full", headers=_RETRY)
