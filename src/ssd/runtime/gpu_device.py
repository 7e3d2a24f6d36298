"""The GPU operations that captured steps and the memory plan need: the only interface of both to torch.cuda.

`CudaDevice` has never run on a GPU. Tests use a stand-in with the same rules on a CPU.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Protocol

import torch


class Graph(Protocol):
    def replay(self) -> None: ...


class EndMark(Protocol):
    """Marks the end of all work that was queued before it."""

    def wait(self) -> None: ...


class Ended:
    """Marks the end of work that has ended, as all work of a CPU has."""

    def wait(self) -> None:
        pass


class GpuDevice(Protocol):
    def side_stream(self) -> AbstractContextManager[object]:
        """Runs the enclosed work on the stream that captures, ordered after earlier and before later work."""
        ...

    def new_pool(self) -> object:
        """A memory pool that graphs share; no two of them may run at the same time."""
        ...

    def new_graph(self) -> Graph: ...

    def capturing(self, graph: Graph, pool: object) -> AbstractContextManager[object]:
        """Captures the enclosed work into the graph without running it; allocations come from the pool."""
        ...

    def mark_end(self) -> EndMark: ...

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

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        # One for all captures, on this device: cuBLAS keeps a workspace for each stream that it has seen, and
        # torch's own capture stream is that of the first device.
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        stream, current = self._stream, torch.cuda.current_stream(self._device)
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
        graphs: Any = torch.cuda.graph
        with torch.cuda.device(self._device), graphs(graph, pool=pool, stream=self._stream):
            yield

    def mark_end(self) -> EndMark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream(self._device).record_event(event)
        return _CudaMark(event)

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


class _CudaMark:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()
