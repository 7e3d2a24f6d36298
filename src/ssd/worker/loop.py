"""The loop of an engine process: takes commands, steps the engine, sends events and heartbeats.

Owns the engine: no other thread touches it. Publishes its status as one immutable value, which the
heartbeat thread reads.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from ssd.decoding.ahead import DraftAhead
from ssd.engine.build import Engine
from ssd.engine.core import StepOutput
from ssd.engine.outputs import EngineStats, SpeculationStats
from ssd.errors import InvalidRequestError
from ssd.worker.engine_sockets import EventSocket, WorkerSocket
from ssd.worker.messages import (
    Abort,
    Add,
    Command,
    Event,
    Finished,
    Heartbeat,
    Increments,
    Refused,
    Shutdown,
    decode_commands,
    encode,
)

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5
_IDLE_SECONDS = 0.1
"""How long an idle engine waits for a command before it checks whether to stop."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine's status: since when it has been busy without progress (None: idle), and its figures."""

    busy_since: float | None
    figures: Heartbeat

    def heartbeat(self, now: float) -> Heartbeat:
        waiting = 0.0 if self.busy_since is None else now - self.busy_since
        return msgspec.structs.replace(self.figures, seconds_without_progress=waiting)


class WorkerLoop:
    def __init__(self, engine: Engine, socket: WorkerSocket) -> None:
        self._core = engine.core
        self._socket = socket
        self._is_over = False
        self.status = self._current_status()
        engine.loaded.runner.model.on_layer = self._note_layer

    def run(self, is_over: Callable[[], bool]) -> None:
        while not self._is_over and not is_over():
            has_work = self._core.has_work
            if not has_work:
                self.status = self._current_status()
            self._take_commands(0.0 if has_work else _IDLE_SECONDS)
            if self._core.has_work:
                self.status = self._current_status()
                self._deliver(self._core.step())
        self._deliver(self._core.flush())

    def _take_commands(self, timeout: float) -> None:
        frame = self._socket.receive(timeout)
        if frame is not None:
            # An idle engine counts as busy from here on: taking commands may hang too.
            self.status = replace(self.status, busy_since=time.monotonic())
        while frame is not None:
            for command in decode_commands(frame):
                self._carry_out(command)
            frame = self._socket.receive(0.0)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Add(request):
                try:
                    self._core.add(request)
                except InvalidRequestError as error:
                    self._say(Refused(request.request_id, str(error)))
                except ValueError as error:  # A defect that concerns one request: others go on.
                    logger.exception("a request could not be added")
                    self._say(Refused(request.request_id, repr(error), is_defect=True))
            case Abort(request_id):
                self._deliver(self._core.abort(request_id))
            case Shutdown():
                self._is_over = True

    def _deliver(self, output: StepOutput) -> None:
        events: list[Event] = [Increments(output.increments)] if output.increments else []
        events += [Finished(each) for each in output.finished]
        if events:
            self._say(*events)

    def _say(self, *events: Event) -> None:
        self._socket.send(encode(events))

    def _note_layer(self) -> None:
        """Reports progress after each layer: a step may take longer than the watchdog's patience."""
        if self.status.busy_since is not None:
            self.status = EngineStatus(time.monotonic(), self.status.figures)

    def _current_status(self) -> EngineStatus:
        core = self._core
        proposer = core.decoder.proposer
        is_draft_ready = proposer.speculator.client.is_ready if isinstance(proposer, DraftAhead) else None
        figures = Heartbeat(
            0.0, core.num_running, core.num_waiting, core.kv_usage, is_draft_ready, core.stats
        )
        return EngineStatus(time.monotonic() if core.has_work else None, figures)


class HeartbeatEncoder:
    """Encodes heartbeats. Replaces statistics that cannot be encoded by the latest that could."""

    def __init__(self) -> None:
        self._stats = EngineStats(SpeculationStats(), 0, 0.0, 0.0, 0.0, None)
        """The latest that could be encoded."""
        self.num_failed = 0

    def frame(self, status: EngineStatus, now: float) -> bytes:
        beat = status.heartbeat(now)
        try:
            frame = encode([beat])
            self._stats = beat.stats
        except Exception:  # Without heartbeats the server would take a healthy engine for a stuck one.
            self.num_failed += 1
            if self.num_failed == 1:
                logger.exception("the engine's statistics cannot be sent: sending the latest ones that could")
            frame = encode([msgspec.structs.replace(beat, stats=self._stats)])
        return frame


def start_heartbeat(loop: WorkerLoop, socket: EventSocket) -> None:
    """Starts a thread that sends the engine's status, also during a long forward."""

    def beat() -> None:
        encoder = HeartbeatEncoder()
        while True:
            socket.try_send(encoder.frame(loop.status, time.monotonic()))
            time.sleep(HEARTBEAT_SECONDS)

    threading.Thread(target=beat, name="ssd-heartbeat", daemon=True).start()
