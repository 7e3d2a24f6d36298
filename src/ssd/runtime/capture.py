"""Work that is captured once and replayed: the same kernels on the same memory, without its Python.

`CudaGraphs` captures it for a card's driver, and met no real card yet. Without a GPU the self-test and tests
capture it by the same rules (`selftest/recording.py`).
"""

from collections.abc import Callable
from typing import Protocol

from ssd.models.weights import ProgressBar
from ssd.runtime.gpu_device import GpuDevice

Work = Callable[[], object]
Replay = Callable[[], None]

_WARM_UPS = 2


class Capture(Protocol):
    def __call__(self, work: Work) -> Replay:
        """Runs the work, perhaps more than once, and gives what runs it again.

        So work is captured while all its rows are padding.
        """
        ...


class CudaGraphs:
    """Kernels that the driver replays. On a real card never run.

    All graphs share one pool of memory, so what a replay leaves must lie in buffers that were there before.
    """

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu, self._pool = gpu, gpu.new_pool()

    def __call__(self, work: Work) -> Replay:
        # What is made at a first call (handles, workspaces, compiled kernels) must not be captured.
        with self._gpu.side_stream():
            for _ in range(_WARM_UPS):
                work()
        graph = self._gpu.new_graph()
        with self._gpu.capturing(graph, self._pool):
            work()
        # While it was captured nothing was done.
        graph.replay()
        return graph.replay


class CaptureWithProgress:
    """Any capture, with a bar that goes on with each."""

    def __init__(self, capture: Capture, bar: ProgressBar) -> None:
        self._capture, self._bar = capture, bar

    def __call__(self, work: Work) -> Replay:
        replay = self._capture(work)
        self._bar.update(1)
        return replay
