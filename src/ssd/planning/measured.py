"""A file with a self-test's measurements, which a plan uses instead of assumed values.

`ssd doctor --selftest --record FILE` writes it, `ssd plan --measured FILE` reads it. Knows no torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from ssd.planning.hardware import Device, called_like
from ssd.planning.roofline import PUBLISHED, Overheads


class SelfTestRecord(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    """The device's name from the driver."""
    bandwidth: float
    """Measured bytes per second."""
    launch: float
    """Seconds per small operation."""
    captured_launch: float | None
    """The same within a CUDA graph; None on a CPU."""
    launches_per_layer: int
    launches_beside: int
    """Launches of a forward outside its layers: embedding, rotary table, last norm, head."""
    host: float
    """Seconds per step in which the target waits for the host, in mode ssd."""
    target_seconds: Mapping[int, float]
    """Seconds of a forward of a random target, by rows."""
    draft_seconds: Mapping[int, float]

    def overheads(self) -> Overheads:
        """Measured launch overheads of a GPU; after a self-test on a CPU, the published ones."""
        if self.captured_launch is None:
            return PUBLISHED
        return Overheads(
            self.captured_launch, self.launches_per_layer, self.launches_beside, f"measured on {self.device}"
        )

    def as_measured(self, device: Device) -> Device:
        """The device with the measured bandwidth if it is the measured kind; otherwise unchanged."""
        sheet = called_like(self.device)
        return (
            replace(device, bandwidth=self.bandwidth)
            if sheet is not None and sheet.name == device.name
            else device
        )

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read_measured(path: Path) -> SelfTestRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=SelfTestRecord)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error}): `ssd doctor --selftest --record FILE` makes one"
        ) from error
    except msgspec.DecodeError as error:
        raise ValueError(
            f"{path} is no record of a self-test ({error}): `ssd doctor --selftest --record FILE` makes one"
        ) from error
