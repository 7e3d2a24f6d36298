"""The GPU operations that captured steps and the memory plan need: the only interface of both to torch.cuda.

`CudaDevice` has never run on a GPU. Tests use a stand-in with the same rules on a CPU.
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
        """Runs the enclosed work on a separate stream, ordered after earlier and before later work."""
        ...

    def new_pool(self) -> object:
        """A memory pool that graphs share; no two of them may run at the same time."""
        ...

    def new_graph(self) -> Graph: ...

    def capturing(self, graph: Graph, pool: object) -> AbstractContextManager[object]:
        """Captures the enclosed work into the graph without running it; allocations come from the pool."""
        ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """Free bytes, after unused cached memory was released."""
        ...

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Runs the work and returns its peak memory, beyond what was allocated before."""
        ...


def gpu_device_of(device: torch.device) -> GpuDevice | None:
    """None for a CPU, where nothing is captured."""
    return CudaDevice(device) if device.type == "cuda" else None


class CudaDevice:
    """The operations by torch.cuda. Has never run on a GPU."""

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
