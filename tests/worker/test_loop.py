"""The worker's loop in a thread of this process: its status says when it stands still."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from ssd import SamplingParams
from ssd.config import EngineConfig
from ssd.engine.build import Engine, build_engine
from ssd.engine.core import StepOutput
from ssd.engine.request import Request
from ssd.errors import InvalidRequestError
from ssd.worker.engine_sockets import Addresses, WorkerSocket
from ssd.worker.loop import HeartbeatEncoder, WorkerLoop
from ssd.worker.messages import Add, Event, Finished, Heartbeat, Refused, decode_events, encode
from tests.engine.test_async_runner import LaterRunner


@pytest.fixture
def engine(tiny_llama: Path) -> Engine:
    return build_engine(EngineConfig(model=str(tiny_llama), dtype="float32", device="cpu"))


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    found = Addresses.private()
    yield found
    found.remove()


@pytest.fixture
def socket(addresses: Addresses) -> Iterator[WorkerSocket]:
    """Closed, or what it could not deliver would keep whoever collects garbage waiting."""
    found = WorkerSocket(addresses)
    yield found
    found.close()


def test_a_first_step_that_hangs_shows(
    engine: Engine, addresses: Addresses, socket: WorkerSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual way for a device to hang: on the first request after a quiet night."""
    goes_on, step = threading.Event(), engine.core.step

    def hanging() -> StepOutput:
        goes_on.wait(30)
        return step()

    monkeypatch.setattr(engine.core, "step", hanging)
    context = zmq.Context()
    commands, events = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    commands.bind(addresses.commands)
    events.bind(addresses.events)
    loop, is_over = WorkerLoop(engine, socket), threading.Event()
    thread = threading.Thread(target=loop.run, args=(is_over.is_set,))
    thread.start()
    try:
        time.sleep(0.3)
        assert standstill(loop) == 0
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        commands.send(encode([Add(engine.requests.request("Hi", params))]))
        until(lambda: standstill(loop) > 0.4)
        assert loop.status.figures.num_waiting + loop.status.figures.num_running == 1
        goes_on.set()
        until(lambda: standstill(loop) == 0)
    finally:
        goes_on.set()
        is_over.set()
        thread.join()
        context.destroy(linger=0)


def test_a_long_forward_that_moves_is_no_standstill(
    engine: Engine, socket: WorkerSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt on a slow machine is work, and the probe can tell."""
    model, longest = engine.loaded.runner.model, 0.0
    (layer, *_) = model._layers

    def slow(*args: Any) -> Any:
        nonlocal longest
        time.sleep(0.2)
        longest = max(longest, standstill(loop))
        return layer(*args)

    monkeypatch.setattr(model, "_layers", [slow] * 8)
    loop = WorkerLoop(engine, socket)
    engine.core.add(engine.requests.request("Hi", SamplingParams(max_tokens=1)))
    began = time.monotonic()
    loop.run(lambda: not engine.core.has_work)
    assert 0.1 < longest < (time.monotonic() - began) / 2


@pytest.mark.parametrize(
    ("error", "is_defect"), [(InvalidRequestError("no"), False), (ValueError("no"), True)]
)
def test_a_request_that_cannot_be_added_ends_alone(
    engine: Engine,
    addresses: Addresses,
    socket: WorkerSocket,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_defect: bool,
) -> None:
    """A defect is told as one, and is not the caller's fault."""

    def fail(_request: Request) -> None:
        raise error

    monkeypatch.setattr(engine.core, "add", fail)
    context = zmq.Context()
    commands, events = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    commands.bind(addresses.commands)
    events.bind(addresses.events)
    request, is_over = engine.requests.request("Hi", SamplingParams()), threading.Event()
    thread = threading.Thread(target=WorkerLoop(engine, socket).run, args=(is_over.is_set,))
    thread.start()
    try:
        commands.send(encode([Add(request)]))
        (event,) = decode_events(events.recv())
    finally:
        is_over.set()
        thread.join()
        context.destroy(linger=0)
    assert isinstance(event, Refused)
    assert (event.request_id, event.is_defect) == (request.request_id, is_defect)


def test_an_output_that_is_complete_is_sent_when_the_loop_ends(
    engine: Engine, socket: WorkerSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a forward that goes on by itself, the last token's step has not been read when the loop ends."""
    decoder: Any = engine.core.decoder
    decoder._runner = LaterRunner(decoder._runner)
    sent: list[Event] = []
    monkeypatch.setattr(socket, "send", lambda frame: sent.extend(decode_events(frame)))
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    engine.core.add(engine.requests.request("Hi", params))
    is_over = iter((False, True))
    WorkerLoop(engine, socket).run(lambda: next(is_over))
    assert [len(each.output.outputs[0].token_ids) for each in sent if isinstance(each, Finished)] == [1]


def standstill(loop: WorkerLoop) -> float:
    return loop.status.heartbeat(time.monotonic()).seconds_without_progress


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_figures_that_cannot_be_sent_do_not_end_the_heartbeat(
    engine: Engine, socket: WorkerSocket, caplog: pytest.LogCaptureFixture
) -> None:
    """A draft's nonsense made a number of more than 64 bits: the thread ended, and an idle server was taken
    for a stuck one."""
    loop, encoder = WorkerLoop(engine, socket), HeartbeatEncoder()
    [sound] = decode_events(encoder.frame(loop.status, 0.0))
    stats = replace(loop.status.figures.stats, num_steps=1 << 70)
    bad = replace(
        loop.status, figures=msgspec.structs.replace(loop.status.figures, stats=stats, num_waiting=3)
    )
    for _ in range(3):
        [found] = decode_events(encoder.frame(bad, 0.0))
        assert isinstance(found, Heartbeat)
        assert isinstance(sound, Heartbeat)
        assert (found.num_waiting, found.stats) == (3, sound.stats)
    assert encoder.num_failed == 3
    assert len(caplog.records) == 1
    assert decode_events(encoder.frame(loop.status, 0.0)) == [sound]
