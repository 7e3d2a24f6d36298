"""What a self-test measured on a machine, as a file: figures that a plan can take instead of assumed ones.

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
    """What the machine calls it."""
    bandwidth: float
    """Bytes a second, read."""
    launch: float
    """Seconds of one small operation among many."""
    captured_launch: float | None
    """The same within a captured graph; None: not measured, there are none on a CPU."""
    launches_per_layer: int
    launches_beside: int
    """Of a forward, beside its layers: embedding, rotary table, last norm, head."""
    host: float
    """Seconds of a step in which the target waits for the host, of one sequence with a draft."""
    target_seconds: Mapping[int, float]
    """Forwards of a made-up target, by rows."""
    draft_seconds: Mapping[int, float]

    def overheads(self) -> Overheads:
        """A GPU's: each launch as a captured step has it. What a CPU's took says nothing of a GPU's."""
        if self.captured_launch is None:
            return PUBLISHED
        return Overheads(
            self.captured_launch, self.launches_per_layer, self.launches_beside, f"measured on {self.device}"
        )

    def as_measured(self, device: Device) -> Device:
        """With the rate at which this very kind was seen to read; another stays as its data sheet has it."""
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
