"""What our code asks of the device in a step of vLLM's V2 runner: few launches, one upload, and no wait."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

import torch
from torch import Tensor

from benchmarks.client_work import DraftHere
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.speculator import Speculator
from ssd.integrations.vllm import device_trees, runner_v2
from ssd.integrations.vllm.runner_v2 import CoupledVerification
from tests.runtime.counted_device import DEVICE, CountedDevice
from tests.vllm.v2_step import Shape, StandInTarget

BATCH, LOOKAHEAD, STEPS = 8, 4, 12


@pytest.fixture(autouse=True)
def without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in device has no events: its work has ended at once."""
    monkeypatch.setattr(runner_v2, "end_of_work", lambda device: lambda: True)


class Run:
    """Steps with live frames of a draft; the device's counts of each, once requests are drafted for."""

    def __init__(self, *, is_async: bool) -> None:
        self._draft = DraftHere()
        depth = 7 if is_async else LOOKAHEAD
        client = DraftClient(FixedSources(self._draft), lookahead=depth)
        while not client.is_ready:
            client.pool.tend()
            self._draft.turn(1)
        self._device = CountedDevice()
        with self._device:
            shape = Shape(BATCH, LOOKAHEAD, is_async=is_async, device=DEVICE)
            self.target = StandInTarget(Speculator(client, lookahead=depth), shape)

    def steps(self) -> Iterator[CountedDevice]:
        under_way = list[Any]()
        with self.target.running():
            for step in range(STEPS):
                self._draft.turn(3)
                record = self.target.next() if step else self.target.begin()
                with self._device:
                    if len(under_way) == 2:
                        under_way.pop(0).get_output()
                    self._device.forget()
                    output = self.target.launch(record)
                if self.target.shape.is_async:
                    under_way.append(output)
                if step > 3:
                    yield self._device
        assert not self.target.sessions.meter.counts["drafting_errors", ""]


def test_an_asynchronous_step_uploads_once_and_waits_for_nothing() -> None:
    run = Run(is_async=True)
    for device in run.steps():
        assert not device.waits
        assert len(device.uploads) == 1
        # How many tokens were chosen: read when a later step has ended.
        assert len(device.downloads) == 1
        assert len(device.launches) <= 3, device.launches
    assert run.target.num_accepted > BATCH, "else nothing was uploaded that counts"


def test_settling_an_asynchronous_step_asks_the_device_for_nothing() -> None:
    run = Run(is_async=True)
    device, output = CountedDevice(), list[Any]()
    for _ in run.steps():
        pass
    with run.target.running():
        with device:
            output.append(run.target.launch(run.target.next()))
        device.forget()
        with device:
            output[0].get_output()
    assert not [*device.uploads, *device.downloads, *device.waits, *device.launches]


def test_a_synchronous_step_uploads_once() -> None:
    run, num_uploads = Run(is_async=False), 0
    for device in run.steps():
        assert not device.downloads
        assert len(device.uploads) <= 1
        num_uploads += len(device.uploads)
    assert num_uploads
    assert run.target.num_accepted > BATCH


def test_a_read_in_a_proposal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are able to say no."""
    walk = device_trees.walk_nodes

    def reading(*arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        drafts, counts = walk(*arguments, **named)
        counts[0].item()
        return drafts, counts

    monkeypatch.setattr(runner_v2, "walk_nodes", reading)
    assert all(device.waits for device in Run(is_async=True).steps())


def test_a_verification_waits_for_nothing() -> None:
    num_rows = BATCH * (LOOKAHEAD + 1)
    with CountedDevice() as device:
        tokens = torch.zeros(num_rows, dtype=torch.int64, device=DEVICE)
        drafted = torch.zeros(num_rows, dtype=torch.int64, device=DEVICE)
        starts = torch.arange(0, num_rows + 1, LOOKAHEAD + 1, dtype=torch.int32, device=DEVICE)
        stock: Any = SimpleNamespace(
            sampler=SimpleNamespace(sample=lambda *_, **__: (tokens, tokens)), num_speculative_steps=LOOKAHEAD
        )
        verification = CoupledVerification.like(stock)
        device.forget()
        # What only vLLM's own sampler reads.
        unread: Any = None
        _, sampled, num_sampled = verification._verify(
            tokens, None, drafted, tokens, starts, unread, unread, unread, unread, unread, drafted
        )
    assert not [*device.uploads, *device.downloads, *device.waits]
    assert sampled.shape == (BATCH, LOOKAHEAD + 1)
    assert len(num_sampled) == BATCH
    assert len(device.launches) < 30, device.launches
