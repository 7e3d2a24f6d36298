"""Plans a GPU's memory: weights, captured steps, the working memory of the largest step, then the KV cache.

The weights are loaded before. The largest step runs once, and all steps are captured once on a pool of a
single block, to measure their memory. The KV cache gets the rest.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ssd.runtime.gpu_device import GpuDevice

_HEADROOM = 0.03
"""Share of the GPU's memory that is left free: for later allocations of the driver, and fragmentation."""
_GIB = 1 << 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    total: int
    free: int
    """Free bytes after loading the weights."""
    working: int
    """Peak bytes of the largest eager step."""
    graphs: int
    """Bytes of captured steps."""
    share: float = 1.0
    """Share of the rest that KV gets; less than 1 if another model will be loaded."""

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
        listed = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())
        return f"of {self.total / _GIB:.2f} GiB: {listed}"


def measured_plan(
    gpu: GpuDevice, largest_step: Callable[[], object], trial_capture: Callable[[], object], *, share: float
) -> MemoryPlan:
    """`trial_capture` returns an object that keeps the captured steps alive; it is deleted here."""
    free = gpu.free_bytes()
    working = gpu.peak_bytes(largest_step)
    # The first step also allocates handles and workspaces that the driver keeps.
    after = gpu.free_bytes()
    captured = trial_capture()
    graphs = after - gpu.free_bytes()
    del captured
    plan = MemoryPlan(gpu.total_bytes(), min(free, after), working, max(0, graphs), share)
    logger.info("memory %s", plan)
    return plan
