"""Runs the engine's steps for callers in one thread, and hands each caller its own outputs.

Callers share one engine: several streams may be read in turn, also while another call waits for a complete
output. A caller that has nothing to read runs a step; outputs of other requests are kept until their callers
read them. Knows requests by their ids.
"""

from collections.abc import Iterator

from ssd.engine.core import EngineCore
from ssd.engine.outputs import Increment, RequestOutput
from ssd.engine.request import Request


class EngineLoop:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._boxes: dict[str, list[Increment | RequestOutput]] = {}
        """Unread outputs of each request that has a reader."""

    def add(self, request: Request) -> None:
        self._core.add(request)
        self._boxes[request.request_id] = []

    def leave(self, request_id: str) -> None:
        """Drops a request's unread outputs, and aborts it if it is still running."""
        self._boxes.pop(request_id, None)
        self._core.abort(request_id)

    def receive(self, request_ids: list[str]) -> Iterator[Increment | RequestOutput]:
        """Yields increments and, last for each request, its output, until all these requests have ended."""
        open_ids = list(request_ids)
        while open_ids:
            if not any(self._boxes[each] for each in open_ids):
                self._step()
            for request_id in list(open_ids):
                # Empty the box before yielding: the reader may call this method again meanwhile.
                unread, self._boxes[request_id] = self._boxes[request_id], []
                if unread and isinstance(unread[-1], RequestOutput):
                    open_ids.remove(request_id)
                yield from unread

    def _step(self) -> None:
        if not self._core.has_work:
            raise RuntimeError("a request has not ended, but the engine has no work: please report this")
        output = self._core.step()
        news: list[Increment | RequestOutput] = [*output.increments, *output.finished]
        for each in news:
            # A request without a box was aborted by `leave`.
            if each.request_id in self._boxes:
                self._boxes[each.request_id].append(each)
