"""Captures work once and replays it: the same kernels on the same memory, without running Python.

`CudaGraphs` captures CUDA graphs; it has not run on a real GPU yet. Without a GPU the self-test and tests
record operations under the same rules (`tests/runtime/recording.py`).
"""

from collections.abc import Callable
from typing import Protocol

from ssd.models.weights import ProgressBar
from ssd.runtime.gpu_device import EndMark, GpuDevice

Work = Callable[[], object]
Replay = Callable[[], None]

_WARM_UPS = 2


class Capture(Protocol):
    def __call__(self, work: Work) -> Replay:
        """Runs the work, perhaps more than once, and returns a function that replays it.

        Because the work runs, capture it while all its rows are padding.
        """
        ...

    def mark_end(self) -> EndMark:
        """Marks the end of all work that was queued, replays included."""
        ...


class CudaGraphs:
    """Captures CUDA graphs. Has never run on a GPU.

    All graphs share one memory pool, so results of a replay must be in buffers allocated before capture.
    """

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu, self._pool = gpu, gpu.new_pool()

    def __call__(self, work: Work) -> Replay:
        # A first call creates handles, workspaces and compiled kernels; these must not be captured.
        with self._gpu.side_stream():
            for _ in range(_WARM_UPS):
                work()
        graph = self._gpu.new_graph()
        with self._gpu.capturing(graph, self._pool):
            work()
        # Capturing does not execute the work.
        graph.replay()
        return graph.replay

    def mark_end(self) -> EndMark:
        return self._gpu.mark_end()


class CaptureWithProgress:
    """A capture that advances a progress bar after each captured step."""

    def __init__(self, capture: Capture, bar: ProgressBar) -> None:
        self._capture, self._bar = capture, bar

    def __call__(self, work: Work) -> Replay:
        replay = self._capture(work)
        self._bar.update(1)
        return replay

    def mark_end(self) -> EndMark:
        return self._capture.mark_end()
