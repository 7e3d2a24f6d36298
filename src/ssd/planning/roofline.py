"""How long a forward takes on a device, from its data sheet and one overhead that is the same for all.

    seconds = max(bytes / bandwidth, operations / flops) + layers × (LAYER_OVERHEAD + two all-reduces)

No constant belongs to a device or a model. LAYER_OVERHEAD stands for everything that is neither weights nor
arithmetic: launches, norms, attention, sampling, what bandwidth is lost at the seams.
"""

from dataclasses import dataclass

from ssd.planning.hardware import Device
from ssd.planning.models import ModelSize
from ssd.planning.times import Forward

LAYER_OVERHEAD = 78e-6
"""Seconds. From one published profile: a step of Qwen3-0.6B on one H100 takes 2.54 ms (28 layers, 1.19 GB):
github.com/Weili-0234/ssd-wl, REPRODUCE.md. That is none of the rows it is validated against."""
_FREE_MEMORY = 0.9
"""Of a device, for weights and KV."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model runs: so many devices of a kind, tensor-parallel."""

    device: Device
    tp: int = 1

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise ValueError(f"tensor parallelism of {self.tp}: at least 1 device")
        if self.tp > 1 and not self.device.link:
            raise ValueError(f"{self.device.name} has no link to another one: use one device")

    def fits(self, model: ModelSize, *, sequences: int = 1, context: int = 1024) -> bool:
        needed = model.bytes_held + sequences * context * model.kv_bytes
        return needed <= _FREE_MEMORY * self.tp * self.device.memory


def forward_on(place: Place, model: ModelSize, *, sequences: int = 1, context: int = 1024) -> Forward:
    """Seconds by rows, of a batch of so many sequences of a context; keys and values are read once each."""
    device, tp = place.device, place.tp
    kv = sequences * context * model.kv_bytes
    moved = 2 * 2 * model.hidden * 2 * (tp - 1) / tp
    """Bytes of a row that a device sends in a layer: two all-reduces, 16 bits, there and back."""
    return Forward(
        floor=(model.bytes_read + kv) / (tp * device.bandwidth),
        per_row=2 * model.read / (tp * device.flops),
        overhead=model.layers * (LAYER_OVERHEAD + (2 * device.reduce if tp > 1 else 0.0)),
        slope=model.layers * moved / device.link if tp > 1 else 0.0,
    )
