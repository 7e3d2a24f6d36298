"""Predicts the time of a forward from a device's data sheet and the overhead of kernel launches.

    seconds = max(bytes / bandwidth, operations / flops) + launches × their time + layers × two all-reduces

No constant belongs to a device or a model. What is neither weights nor arithmetic (launches, norms,
attention, sampling, what bandwidth is lost at the seams) is counted by launches: as many as a self-test
counts in our forward, each as long as it measured; without a self-test, those of a published profile.
"""

from dataclasses import dataclass

from ssd.planning.hardware import Device, published_launch
from ssd.planning.models import ModelSize
from ssd.planning.times import Forward

_PROFILED_PER_LAYER = 20
"""Launches that the published profile is divided by; ours are fewer."""
_FREE_MEMORY = 0.9
"""Share of a device's memory for weights and KV cache."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """Launch overheads of a forward, and their source."""

    launch: float
    """Seconds per launch."""
    per_layer: int = _PROFILED_PER_LAYER
    beside: int = 0
    """Launches beside all layers; of a published step they are counted with these."""
    source: str = "a published profile of a step, host included"

    def seconds(self, layers: int) -> float:
        return (layers * self.per_layer + self.beside) * self.launch

    @property
    def words(self) -> str:
        beside = f" and {self.beside} beside them" if self.beside else ""
        return f"{self.per_layer} launches a layer{beside}, {1e6 * self.launch:.1f} µs each ({self.source})"


PUBLISHED = Overheads(published_launch())


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of one kind that run a model with tensor parallelism."""

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


def forward_on(
    place: DeviceGroup,
    model: ModelSize,
    *,
    sequences: int = 1,
    context: int = 1024,
    overheads: Overheads = PUBLISHED,
) -> Forward:
    """Seconds of a forward by rows, for a batch of sequences with this context."""
    device, tp = place.device, place.tp
    kv = sequences * context * model.kv_bytes
    moved = 2 * 2 * model.hidden * 2 * (tp - 1) / tp
    """Bytes of a row that a device sends in a layer: two all-reduces, 16 bits, there and back."""
    return Forward(
        floor=(model.bytes_read + kv) / (tp * device.bandwidth),
        per_row=2 * model.read / (tp * device.flops),
        overhead=overheads.seconds(model.layers) + (model.layers * 2 * device.reduce if tp > 1 else 0.0),
        slope=model.layers * moved / device.link if tp > 1 else 0.0,
    )
