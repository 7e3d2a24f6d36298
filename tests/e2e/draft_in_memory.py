"""A real draft service in the test's own thread: real model, real protocol, queues for sockets.

It takes steps when the test says so, so that every interleaving of draft and target can be had
again from a seed; and it can die and be replaced.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssd.config import DraftConfig
from ssd.draft.client.connection import Connection
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import EngineSocket, Heard
from ssd.draft.server.main import build_server
from ssd.draft.server.server import DraftServer
from tests.still_clock import still

PEER = b"engine"


class Wires:
    """Two queues."""

    def __init__(self) -> None:
        self.to_draft: deque[bytes] = deque()
        self.to_engine: deque[bytes] = deque()


class EngineEnd:
    def __init__(self, wires: Wires, wait: Callable[[], None]) -> None:
        self._wires, self._wait = wires, wait

    def send(self, frame: bytes) -> None:
        self._wires.to_draft.append(frame)

    def overfull(self) -> str:
        return ""

    def receive(self, timeout: float) -> bytes | None:
        if timeout > 0 and not self._wires.to_engine:
            self._wait()
        return self._wires.to_engine.popleft() if self._wires.to_engine else None

    def close(self) -> None:
        pass


class DraftEnd:
    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        """Those of the latest line."""

    def send(self, peer: bytes, frame: bytes) -> None:
        self.wires.to_engine.append(frame)

    def receive(self, timeout: float) -> Heard | None:
        return Heard(PEER, self.wires.to_draft.popleft()) if self.wires.to_draft else None

    def close(self) -> None:
        pass


class InMemoryDraft:
    """A source of lines to a draft that lives here; `kill` it and the next line finds another."""

    def __init__(
        self,
        model: Path,
        hello: Hello,
        clock: Callable[[], float],
        wrap: Callable[[EngineSocket], EngineSocket] = lambda link: link,
        *,
        width: int = 6,
        kv_cache_bytes: int = 1 << 24,
        **settings: Any,
    ) -> None:
        self._config = DraftConfig(
            model=str(model), device="cpu", kv_cache_bytes=kv_cache_bytes, width=width, **settings
        )
        self._hello, self._clock, self._wrap = hello, clock, wrap
        self._ended = ""
        self._end = DraftEnd(Wires())
        self.is_stopped = False
        self.service: DraftServer | None = None
        self.dead: list[DraftServer] = []

    name = "a draft"

    def connect(self) -> Connection | None:
        wires = Wires()
        self._end.wires = wires
        if self.service is None:
            # It takes in all that has arrived, however slow the machine is.
            self.service = build_server(self._config, self._end, clock=still)
        self._ended = ""
        link = self._wrap(EngineEnd(wires, self._let_time_pass))
        return Connection(link, self._hello, self._clock, timeout=1.0, hello_timeout=2.0)

    def is_broken(self) -> str:
        return self._ended

    def close(self) -> None:
        pass

    def kill(self) -> None:
        self.service, self._ended = None, "killed"

    def replace(self, model: Path) -> None:
        """The next line finds a draft of this model."""
        self._config = replace(self._config, model=str(model))
        self.kill()

    def pump(self, turns: int) -> None:
        if self.service is not None and not self.is_stopped:
            for _ in range(turns):
                self.service.turn(0.0)

    def _let_time_pass(self) -> None:
        self.pump(1)
