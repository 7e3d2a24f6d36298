"""The engine's loop in a thread of this process: its pulse says when it stands still."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from ssd import SamplingParams
from ssd.config import EngineConfig
from ssd.engine.build import Engine, build_engine
from ssd.engine.core import StepOutput
from ssd.worker.link import Addresses, WorkerLink
from ssd.worker.loop import EngineLoop
from ssd.worker.messages import Add, encode


@pytest.fixture
def engine(tiny_llama: Path) -> Engine:
    return build_engine(EngineConfig(model=str(tiny_llama), dtype="float32", device="cpu"))


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    found = Addresses.private()
    yield found
    found.remove()


def test_a_first_step_that_hangs_shows(
    engine: Engine, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
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
    loop, is_over = EngineLoop(engine, WorkerLink(addresses)), threading.Event()
    thread = threading.Thread(target=loop.run, args=(is_over.is_set,))
    thread.start()
    try:
        time.sleep(0.3)
        assert standstill(loop) == 0
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        commands.send(encode([Add(engine.requests.request("Hi", params))]))
        until(lambda: standstill(loop) > 0.4)
        assert loop.pulse.figures.num_waiting + loop.pulse.figures.num_running == 1
        goes_on.set()
        until(lambda: standstill(loop) == 0)
    finally:
        goes_on.set()
        is_over.set()
        thread.join()
        context.destroy(linger=0)


def standstill(loop: EngineLoop) -> float:
    return loop.pulse.heartbeat(time.monotonic()).seconds_without_progress


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
