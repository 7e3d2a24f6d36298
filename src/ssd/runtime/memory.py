"""A card's memory, planned as a whole: weights, captured steps, what the largest step works with, then KV.

Weights lie there when the plan is made. The largest step is done once, and everything that will be captured
is captured once, on a pool of a single block: what they take is measured, not guessed. KV gets what is left.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ssd.runtime.gpu_device import GpuDevice

_HEADROOM = 0.03
"""Of the whole card: for what the driver takes by and by, and memory that is free in pieces only."""
_GIB = 1 << 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    total: int
    free: int
    """With the weights there."""
    working: int
    """What the largest step that is not captured holds at a time."""
    graphs: int
    """What captured steps keep."""
    share: float = 1.0
    """Of what is left, for KV: less where another model is still to come."""

    @property
    def kv_bytes(self) -> int:
        left = self.free - self.working - self.graphs - int(self.total * _HEADROOM)
        return int(max(0, left) * self.share)

    def __str__(self) -> str:
        parts = {
            "weights and others": self.total - self.free,
            "captured steps": self.graphs,
            "the largest step": self.working,
            "left for KV": self.kv_bytes,
        }
        said = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())
        return f"of {self.total / _GIB:.2f} GiB: {said}"


def measured_plan(
    gpu: GpuDevice, largest_step: Callable[[], object], trial_capture: Callable[[], object], *, share: float
) -> MemoryPlan:
    """`trial_capture` gives what has to stay; here it goes again."""
    free = gpu.free_bytes()
    working = gpu.peak_bytes(largest_step)
    # Handles and workspaces of a first step stay with the driver.
    after = gpu.free_bytes()
    kept = trial_capture()
    graphs = after - gpu.free_bytes()
    del kept
    plan = MemoryPlan(gpu.total_bytes(), min(free, after), working, max(0, graphs), share)
    logger.info("memory %s", plan)
    return plan
