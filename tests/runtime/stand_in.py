"""A GPU's rules over a CPU: a GPU device for tests.

While a graph is captured nothing is done: memory is as it was before. What the work allocates is the graph's,
holds rubbish until a replay, and again when another graph of the same pool was replayed. A kernel that was
never launched before a capture would be loaded in it, which a driver refuses; so are reads and uploads of the
host's. Memory is that of all tensors that live, also those on the device `meta`, which have a size and no
content. It cannot show races, or what a driver does by itself.

With a `CountedDevice` its graphs are of that device's tensors, and counted there as graphs.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ssd.runtime.gpu_device import Ended
from tests.runtime.counted_device import CountedDevice
from tests.runtime.recording import CaptureError, Recorder, Tape, name_of, tensors_of

_RUBBISH = -(1 << 40)


class Pool:
    """Of memory that graphs share."""

    def __init__(self) -> None:
        self.latest: StandInGraph | None = None
        """Whose values are there."""


class StandInGraph:
    def __init__(self, gpu: "StandInDevice") -> None:
        self._gpu = gpu
        self.tape = Tape([])
        self.pool: Pool | None = None
        self.number: int | None = None
        """Of a device that counts."""

    def replay(self) -> None:
        if self.pool is None:
            raise RuntimeError("a graph is replayed before anything was captured")
        if self._gpu.is_capturing:
            raise RuntimeError("a graph is replayed while another is captured")
        counts, latest = self._gpu.counts, self.pool.latest
        self.pool.latest = self
        with nullcontext() if counts is None or self.number is None else counts.replaying(self.number):
            if latest not in (None, self):
                latest.spoil()
            self.tape()

    @torch.inference_mode()
    def spoil(self) -> None:
        for each in (result for operation in self.tape.operations for result in operation.results):
            if each.dtype != torch.bool and not each.is_mkldnn:
                each.fill_(torch.nan if each.is_floating_point() else max(_RUBBISH, _least(each.dtype)))


class StandInDevice:
    def __init__(self, total: int | None = None, counts: CountedDevice | None = None) -> None:
        """With so many bytes, of which nothing that lives already takes any: `gc.unfreeze` at the end.

        `counts`: the device whose tensors the graphs work on, while it is entered.
        """
        self.counts = counts
        self.total = 1 << 40 if total is None else total
        if total is not None:
            gc.collect()
            gc.freeze()
        self.launched: set[str] = set()
        """Kernels that the driver knows."""
        self.is_capturing = False

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        with _Launches(self.launched):
            yield

    def new_pool(self) -> Pool:
        return Pool()

    def new_graph(self) -> StandInGraph:
        return StandInGraph(self)

    @contextmanager
    def capturing(self, graph: Any, pool: Any) -> Iterator[None]:
        recorder = _Capturer(graph.tape, self.launched)
        self.is_capturing = True
        try:
            with self.counts.capturing() if self.counts else nullcontext() as number, recorder:
                yield
        finally:
            self.is_capturing = False
            with self.counts.unseen() if self.counts else nullcontext():
                recorder.undo()
        graph.number, graph.pool = number, pool
        graph.spoil()

    def mark_end(self) -> Ended:
        """Its work ends at once. A device that counts is told when the host waits for it."""
        return Ended() if self.counts is None else self.counts.mark_end()

    def total_bytes(self) -> int:
        return self.total

    def free_bytes(self) -> int:
        gc.collect()
        return self.total - _living_bytes()

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """As if nothing were given back before its end."""
        with _Sums() as sums:
            work()
        return int(sums.num_bytes)


class _Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, launched: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._launched = launched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._launched.add(name_of(func))
        return func(*args, **(kwargs or {}))


class _Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        known = {_home(each) for each in tensors_of((args, kwargs)) if not each.is_mkldnn}
        self.num_bytes += sum(
            each.nbytes for each in tensors_of(made) if not each.is_mkldnn and _home(each) not in known
        )
        return made


class _Capturer(Recorder):  # type: ignore[no-untyped-call]
    """Keeps what memory of others held before the work wrote to it."""

    def __init__(self, tape: Tape, launched: set[str]) -> None:
        super().__init__(tape)
        self._graph, self._launched = tape, launched
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for place, given in zip(func._schema.arguments, args, strict=False):
            if place.alias_info is not None and place.alias_info.is_write:
                for each in tensors_of(given):
                    self._keep(each)
        before = len(self._graph.operations)
        made = super().__torch_dispatch__(func, types, args, kwargs)
        # A view has no kernel.
        if len(self._graph.operations) > before and name_of(func) not in self._launched:
            raise CaptureError(f"{name_of(func)}: its kernel would be loaded while a graph is captured")
        if not func._schema.is_mutable:
            known = {_home(each) for each in tensors_of((args, kwargs)) if not each.is_mkldnn}
            self._own |= {_home(each) for each in tensors_of(made)} - known
        return made

    @torch.inference_mode()
    def undo(self) -> None:
        for whole, before in self._before.values():
            whole.copy_(before)

    def _keep(self, written: Tensor) -> None:
        home = _home(written)
        if home == 0:
            return  # It has a shape only.
        if home not in self._own and home not in self._before:
            storage = written.untyped_storage()
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._before[home] = whole, whole.clone()


def _home(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _least(dtype: torch.dtype) -> int:
    return int(torch.iinfo(dtype).min) if not dtype.is_floating_point else 0


def _living_bytes() -> int:
    """Of tensors that were not frozen."""
    storages = {}
    for each in gc.get_objects():
        if issubclass(type(each), Tensor) and each.device.type in ("cpu", "meta") and not each.is_mkldnn:
            storage = each.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
