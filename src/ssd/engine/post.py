"""Outputs of steps go to the requests they belong to, whoever computed the step.

Callers share one engine: a stream may be read while another is, or while a whole answer is waited for.
Whoever needs something next runs a step; what it brings for others waits here for them. Knows requests by
their ids.
"""

from collections.abc import Iterator

from ssd.engine.core import EngineCore
from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.request import Request


class Post:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._boxes: dict[str, list[Increment | RequestOutput]] = {}
        """Of each request that somebody waits for, what has come and was not taken."""

    def add(self, request: Request) -> None:
        self._core.add(request)
        self._boxes[request.request_id] = []

    def leave(self, request_id: str) -> None:
        """Nobody waits for it any more: it ends, if it has not yet."""
        self._boxes.pop(request_id, None)
        self._core.abort(request_id)

    def receive(self, request_ids: list[str]) -> Iterator[Increment | RequestOutput]:
        """Everything that comes for these requests, each one's output last, until all have ended."""
        open_ids = list(request_ids)
        while open_ids:
            if not any(self._boxes[each] for each in open_ids):
                self._step()
            for request_id in list(open_ids):
                # Emptied before anything is handed out: the reader may come back here by another request.
                came, self._boxes[request_id] = self._boxes[request_id], []
                if came and isinstance(came[-1], RequestOutput):
                    open_ids.remove(request_id)
                yield from came

    def _step(self) -> None:
        if not self._core.has_work:
            raise RuntimeError("a request has neither ended nor anything to compute: please report this")
        output = self._core.step()
        came: list[Increment | RequestOutput] = [*output.increments, *output.finished]
        for each in came:
            # Those whom nobody waits for have ended: there are no others.
            if each.request_id in self._boxes:
                self._boxes[each.request_id].append(each)
