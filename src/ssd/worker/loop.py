"""The engine's loop: commands in, steps, events out; and the pulse that says it moves.

Owns the engine: nothing else in the process touches it. What others may read, the pulse, is
published as one value that never changes.
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
from ssd.worker.link import EventLink, WorkerLink
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
"""How long an idle engine waits for a command before it looks whether it is over."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the engine last published: when it came round to its work (None: idle), and its figures."""

    busy_since: float | None
    figures: Heartbeat

    def heartbeat(self, now: float) -> Heartbeat:
        waiting = 0.0 if self.busy_since is None else now - self.busy_since
        each = self.figures
        return Heartbeat(
            waiting, each.num_running, each.num_waiting, each.kv_usage, each.is_draft_ready, each.stats
        )


class EngineLoop:
    def __init__(self, engine: Engine, link: WorkerLink) -> None:
        self._core = engine.core
        self._link = link
        self._is_over = False
        self.pulse = self._take_pulse()
        engine.loaded.runner.model.on_layer = self._note_layer

    def run(self, is_over: Callable[[], bool]) -> None:
        while not self._is_over and not is_over():
            has_work = self._core.has_work
            if not has_work:
                self.pulse = self._take_pulse()
            self._take_commands(0.0 if has_work else _IDLE_SECONDS)
            if self._core.has_work:
                self.pulse = self._take_pulse()
                self._deliver(self._core.step())
        self._deliver(self._core.tell())

    def _take_commands(self, timeout: float) -> None:
        frame = self._link.receive(timeout)
        if frame is not None:
            # An idle engine is expected to move from here on, and taking the commands is part of it.
            self.pulse = replace(self.pulse, busy_since=time.monotonic())
        while frame is not None:
            for command in decode_commands(frame):
                self._carry_out(command)
            frame = self._link.receive(0.0)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Add(request):
                try:
                    self._core.add(request)
                except InvalidRequestError as error:
                    self._say(Refused(request.request_id, str(error)))
                except ValueError as error:  # One request's, whatever it is: others go on.
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
        self._link.send(encode(events))

    def _note_layer(self) -> None:
        """A step may take longer than anyone would wait for a sign of life; no layer does."""
        if self.pulse.busy_since is not None:
            self.pulse = Pulse(time.monotonic(), self.pulse.figures)

    def _take_pulse(self) -> Pulse:
        core = self._core
        proposer = core.decoder.proposer
        is_draft_ready = proposer.speculator.client.is_ready if isinstance(proposer, DraftAhead) else None
        figures = Heartbeat(
            0.0, core.num_running, core.num_waiting, core.kv_usage, is_draft_ready, core.stats
        )
        return Pulse(time.monotonic() if core.has_work else None, figures)


class Beats:
    """Heartbeats as frames. Figures that cannot be sent are left out: the engine lives all the same."""

    def __init__(self) -> None:
        self._stats = EngineStats(SpeculationStats(), 0, 0.0, 0.0, 0.0, None)
        """The latest that could be sent."""
        self.num_failed = 0

    def frame(self, pulse: Pulse, now: float) -> bytes:
        try:
            beat = pulse.heartbeat(now)
            frame = encode([beat])
            self._stats = beat.stats
        except Exception:  # Whatever it is: without heartbeats an idle engine would be taken for a stuck one.
            self.num_failed += 1
            if self.num_failed == 1:
                logger.exception("the engine's figures cannot be sent: the latest ones stand in for them")
            frame = encode([replace(pulse, figures=self._without_news(pulse.figures)).heartbeat(now)])
        return frame

    def _without_news(self, figures: Heartbeat) -> Heartbeat:
        return msgspec.structs.replace(figures, stats=self._stats)


def start_heartbeat(loop: EngineLoop, link: EventLink) -> None:
    """A thread that passes the pulse on, also while a forward takes long."""

    def beat() -> None:
        beats = Beats()
        while True:
            link.try_send(beats.frame(loop.pulse, time.monotonic()))
            time.sleep(HEARTBEAT_SECONDS)

    threading.Thread(target=beat, name="ssd-heartbeat", daemon=True).start()
