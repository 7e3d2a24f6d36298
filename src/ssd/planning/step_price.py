"""Prices the calls of a step on a device that was not measured, by the device's row in `data/hardware.toml`.

Host and device run side by side. The host takes time to submit a call. The device starts the call's work when
the call is submitted and all earlier work has ended. A call that waits stops the host until the call's own
work has ended; a call of the kind `wait`, until an earlier read has. The price is in seconds, from the end of
one step to the end of the next.

Knows calls and a data sheet. Does not know models, torch, or where calls come from. Not in the price: work
that a device does at the same time as other work, what its cache keeps, and how well a matrix product's shape
fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ssd.planning.hardware import Device, DriverCosts

CallKind = Literal["launch", "replay", "upload", "read", "wait"]
_STEPS = 4


@dataclass(frozen=True, slots=True)
class KernelWork:
    name: str
    num_bytes: float
    """Read and written in the device's memory."""
    operations: float = 0.0
    """Of a matrix product."""
    is_ours: bool = False
    """Whether it is one of our kernels, not torch's."""


@dataclass(frozen=True, slots=True)
class DeviceCall:
    """One thing that the host asks of the device."""

    kind: CallKind
    name: str
    kernels: tuple[KernelWork, ...] = ()
    """One for a launch, all of a graph for a replay, none for a copy."""
    num_bytes: int = 0
    """Of a copy, between host and device."""
    waits: bool = False
    is_pinned: bool = False
    behind: int = 0
    """Of a `wait`: how many reads were asked for since the one that it waits for."""
    host: float = 0.0
    """Seconds of the host's own work since the call before."""


@dataclass(frozen=True, slots=True)
class StepPrice:
    seconds: float
    """From one step to the next."""
    busy: float
    """Of these, what the device computes."""


def price(calls: Sequence[DeviceCall], device: Device, host: float) -> StepPrice:
    """`host`: seconds of the host's own work in the step, divided in proportion to `DeviceCall.host`."""
    driver = device.driver
    if driver is None:
        raise ValueError(f"{device.name} has no costs of calls: add them to its row in data/hardware.toml")
    counted = sum(each.host for each in calls)
    scale = host / counted if counted else 0.0
    clock, ends = _HostAndDevice(device, driver), list[float]()
    for _ in range(_STEPS):
        for each in calls:
            clock.run(each, scale)
        ends.append(max(clock.host, clock.device))
    return StepPrice((ends[-1] - ends[0]) / (_STEPS - 1), clock.busy / _STEPS)


class _HostAndDevice:
    def __init__(self, device: Device, driver: DriverCosts) -> None:
        self._sheet, self._driver = device, driver
        self.host = self.device = self.busy = 0.0
        """`host`, `device`: when each ends its work. `busy`: seconds that the device computes or copies."""
        self._reads = list[float]()
        """When each read ended."""

    def run(self, call: DeviceCall, scale: float) -> None:
        driver = self._driver
        if call.kind == "wait":
            self._wait(call, scale)
            return
        is_copy = call.kind in ("upload", "read")
        submit = driver.copy if is_copy else driver.replay if call.kind == "replay" else driver.launch
        self.host += scale * call.host + submit
        took = call.num_bytes / driver.pcie + sum(self._seconds(each) for each in call.kernels)
        self.device = max(self.device, self.host) + took
        self.busy += took
        if call.kind == "read":
            self._reads.append(self.device)
        if call.waits:
            self.host = self.device + driver.wait

    def _wait(self, call: DeviceCall, scale: float) -> None:
        self.host += scale * call.host
        # Before the first steps there was nothing to read.
        if len(self._reads) > call.behind:
            self.host = max(self.host, self._reads[-1 - call.behind] + self._driver.wait)

    def _seconds(self, work: KernelWork) -> float:
        bandwidth = self._driver.share * self._sheet.bandwidth
        return self._driver.node + max(work.num_bytes / bandwidth, work.operations / self._sheet.flops)
