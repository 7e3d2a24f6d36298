"""What a GPU does for captured steps and the plan of its memory: the one seam between both and torch.cuda.

`CudaDevice` was never run: no machine of ours has a GPU. Tests have a card with its rules over a CPU.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Graph(Protocol):
    def replay(self) -> None: ...


class GpuDevice(Protocol):
    def side_stream(self) -> AbstractContextManager[object]:
        """Work in it runs on a stream of its own, behind all before it and before all behind it."""
        ...

    def new_pool(self) -> object:
        """Memory that graphs may share: no two of them run at a time."""
        ...

    def new_graph(self) -> Graph: ...

    def capturing(self, graph: Graph, pool: object) -> AbstractContextManager[object]:
        """Work in it is not done, but becomes the graph; what it allocates lies in the pool."""
        ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """After all that nobody holds was given back."""
        ...

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Does the work: what it held at most, beside all that was held before."""
        ...


def gpu_device_of(device: torch.device) -> GpuDevice | None:
    """None: a CPU, where nothing is captured."""
    return CudaDevice(device) if device.type == "cuda" else None


class CudaDevice:
    """Never run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        stream, current = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        current.wait_stream(stream)

    def new_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def new_graph(self) -> torch.cuda.CUDAGraph:
        return torch.cuda.CUDAGraph()

    @contextmanager
    def capturing(self, graph: Graph, pool: object) -> Iterator[None]:
        with torch.cuda.device(self._device), torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]
            yield

    def total_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def free_bytes(self) -> int:
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def peak_bytes(self, work: Callable[[], object]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device) - before)
