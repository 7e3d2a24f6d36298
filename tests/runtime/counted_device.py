"""A stand-in for a device: counts what a program asks of it, and what of that makes the host wait.

While a `CountedDevice` is entered, tensors made on `DEVICE` are `DeviceTensor`s: their values are on the CPU,
but every operation on them is seen first. Tensors on the CPU stay what they are, so uploads, reads and work
on the host are told apart, and a read is a copy. With `keeps_values=False` tensors have shapes only: real
models then take neither memory nor time, and a read is an error.

Graphs are those of `stand_in.py`, which says when one is captured or replayed: what is captured is counted
once, as the graph's kernels, and a replay is one call. `ssd.planning.step_price` prices the calls. Knows
nothing of streams or of how long a device takes.
"""

import math
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ssd.planning.step_price import CallKind, DeviceCall, KernelWork
from ssd.runtime.gpu_device import Ended
from ssd.sampling import philox
from tests.runtime.recording import HOST_READS, name_of, tensors_of

DEVICE = torch.device("meta")
"""Any type that torch knows and does not initialise: every operation on it is answered here."""
_CPU = torch.device("cpu")
_NO_LAUNCH = ("empty", "empty_like", "empty_strided", "new_empty")
_COPIES = ("_to_copy", "to", "copy_")
_PRODUCTS = ("linear", "mm", "matmul", "addmm", "bmm")
_GATHERS = ("index", "index_select", "gather", "embedding", "take", "index_put_", "_index_put_impl_")
_SCATTERS = ("index_copy_", "index_fill_", "index_add_", "scatter_")
_WRITERS = ("index_put_", "_index_put_impl_", *_SCATTERS)


class DeviceTensor(Tensor):
    """A tensor on `DEVICE`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "DeviceTensor":
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        """As torch's, which takes no subclass."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """As torch's, which takes no subclass. A copy, as from any device."""
        return self.cpu().numpy(force=force)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{name_of(func)} on a tensor of the device, outside of it")


class CountedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, *, keeps_values: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._holds = _CPU if keeps_values else torch.device("meta")
        self.graphs = list[list[KernelWork]]()
        """The kernels of each graph, in the order in which they were captured."""
        self._graph: list[KernelWork] | None = None
        """Of these the one that is being captured."""
        self._is_unseen = False
        self._constructors = _Constructors(self)
        self._num_marks = 0
        self._num_holders = Counter[int]()
        """By storage: tensors that are alive."""
        self._num_bytes = self.peak_bytes = 0
        """Bytes of the device that tensors hold, and the most that they held at a time."""
        self._pinned = list[Tensor]()
        """Memory of the host that copies need not stage. Kept, so that no other memory gets its address."""
        self._pending = list[tuple[int, Tensor, Tensor]]()
        """Of copies that the host does not know to have ended: marks before them, the memory that they copy
        from, and what it held."""
        # What another test kept for torch's own meta device has no values.
        philox._constants.cache_clear()
        self.forget()

    def __enter__(self) -> "CountedDevice":
        self._constructors.__enter__()  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-untyped-call, no-any-return]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._constructors.__exit__(*error)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Counts from here on."""
        self.calls = list[DeviceCall]()
        self._since = time.perf_counter()

    @property
    def launches(self) -> list[str]:
        """Kernels outside of graphs, by name; copies between host and device are none."""
        return [each.name for each in self.calls if each.kind == "launch"]

    @property
    def uploads(self) -> list[str]:
        return [each.name for each in self.calls if each.kind == "upload"]

    @property
    def downloads(self) -> list[str]:
        return [each.name for each in self.calls if each.kind == "read"]

    @property
    def waits(self) -> list[str]:
        """What made the host wait for the device."""
        return [each.name for each in self.calls if each.waits]

    @contextmanager
    def capturing(self) -> Iterator[int]:
        """What is asked for in here becomes a graph's. Gives the number of that graph."""
        self._graph = list[KernelWork]()
        self.graphs.append(self._graph)
        try:
            yield len(self.graphs) - 1
        finally:
            self._graph = None

    @contextmanager
    def replaying(self, number: int) -> Iterator[None]:
        """Counts a replay of this graph as one call, and nothing that is computed within it."""
        self._note("replay", f"graph {number}", tuple(self.graphs[number]))
        with self.unseen():
            yield

    @contextmanager
    def unseen(self) -> Iterator[None]:
        self._is_unseen = True
        try:
            yield
        finally:
            self._is_unseen = False
            self._since = time.perf_counter()

    def mark_end(self) -> "Mark":
        self._num_marks += 1
        return Mark(self, self._num_marks)

    def waited(self, mark: int) -> None:
        """The host has waited for all that was queued before this mark."""
        self._note("wait", "mark", waits=True, behind=self._num_marks - mark)
        for before, memory, held in self._pending:
            if before < mark and not torch.equal(memory, held):
                raise RuntimeError(
                    "pinned memory was rewritten before the copy from it was known to have ended"
                )
        self._pending = [each for each in self._pending if each[0] >= mark]

    def launch(self, name: str, num_bytes: float) -> None:
        """A kernel that torch does not dispatch."""
        self._note("launch", name, (KernelWork(name, num_bytes, is_ours=True),))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        is_pinned = kwargs.pop("pin_memory", None)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, DeviceTensor)]
        goal = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.device)), None)
        is_made_here = goal == DEVICE
        if not given and not is_made_here:
            result = func(*args, **kwargs)
            if is_pinned:
                self._pinned.append(result)
            return result
        known = {id(each.held): each for each in given}
        inner_args, inner = tree_map(self._inner, (tuple(args), kwargs))
        result = func(*inner_args, **inner)
        to_host = goal is not None and not is_made_here
        is_read = to_host or (name_of(func) == "copy_" and not isinstance(args[0], DeviceTensor))
        if not self._is_unseen:
            self._count(func, args, kwargs, result, is_read=is_read)
        if is_read:
            found = result.clone() if to_host else result
        else:
            found = tree_map(lambda each: self._wrapped(each, known), result)
        self._since = time.perf_counter()
        return found

    def made_of_values(self, values: Tensor) -> DeviceTensor:
        """torch.tensor([…], device=…) uploads from memory that is not pinned, and waits."""
        if not self._is_unseen:
            self._note("upload", "tensor", num_bytes=values.nbytes, waits=True)
        with _disable_current_modes():
            return self._held(values.to(self._holds))

    def _wrapped(self, value: Any, known: dict[int, DeviceTensor]) -> Any:
        if not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else self._held(value)

    def _held(self, tensor: Tensor) -> DeviceTensor:
        made, home, size = DeviceTensor(tensor), _home(tensor), tensor.untyped_storage().nbytes()
        self._num_holders[home] += 1
        if self._num_holders[home] == 1:
            self._num_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._num_bytes)
        weakref.finalize(made, self._let_go, home, size)
        return made

    def _let_go(self, home: int, size: int) -> None:
        self._num_holders[home] -= 1
        if not self._num_holders[home]:
            del self._num_holders[home]
            self._num_bytes -= size

    def _inner(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value == DEVICE:
            return self._holds
        return host_form(value)

    def _count(self, func: Any, args: Sequence[Any], kwargs: Any, result: Any, *, is_read: bool) -> None:
        name = name_of(func)
        on_host = [
            each for each in tensors_of((args, kwargs)) if not isinstance(each, DeviceTensor) and each.ndim
        ]
        is_non_blocking = bool(kwargs.get("non_blocking", name == "copy_" and len(args) > 2 and args[2]))
        if name in _COPIES and (is_read or on_host):
            crossing = sum(each.nbytes for each in on_host) if on_host else result.nbytes
            self._copy(name, on_host, crossing, is_read=is_read, waits=not is_non_blocking)
            return
        reads_value = name in HOST_READS or _is_by_mask(name, args)
        if on_host and not reads_value:
            # For example an index on the host: torch uploads it, and waits.
            self._copy(name, on_host, sum(each.nbytes for each in on_host), is_read=False, waits=True)
        if name not in (*_NO_LAUNCH, *HOST_READS) and not _is_view(func, args, kwargs, result):
            work = KernelWork(name, _bytes_moved(func, args, kwargs, result), _operations(name, args))
            self._note("launch", name, (work,))
        if reads_value:
            self._note("read", name, num_bytes=8, waits=True)

    def _copy(
        self, name: str, on_host: Sequence[Tensor], num_bytes: int, *, is_read: bool, waits: bool
    ) -> None:
        pinned = {_home(each) for each in self._pinned}
        # torch pins what `to` makes on the host without blocking.
        is_pinned = all(_home(each) in pinned for each in on_host) if on_host else not waits
        # The driver waits for a copy to memory that is not pinned, blocking or not.
        waits = waits or (is_read and not is_pinned)
        if not is_read and is_pinned and not waits:
            with _disable_current_modes():
                self._pending += [(self._num_marks, each, each.clone()) for each in on_host]
        kind: CallKind = "read" if is_read else "upload"
        self._note(kind, name, num_bytes=num_bytes, waits=waits, is_pinned=is_pinned)

    def _note(
        self,
        kind: CallKind,
        name: str,
        kernels: tuple[KernelWork, ...] = (),
        *,
        num_bytes: int = 0,
        waits: bool = False,
        is_pinned: bool = False,
        behind: int = 0,
    ) -> None:
        if self._graph is not None:
            self._graph.extend(kernels)
            return
        now = time.perf_counter()
        self.calls.append(
            DeviceCall(kind, name, kernels, num_bytes, waits, is_pinned, behind, now - self._since)
        )
        self._since = now


class Mark(Ended):
    def __init__(self, device: CountedDevice, number: int) -> None:
        self._device, self._number = device, number

    def wait(self) -> None:
        self._device.waited(self._number)


class _Constructors(TorchFunctionMode):
    """`torch.tensor` on the device: torch would keep no values for a device of this type."""

    def __init__(self, device: CountedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            return self._device.made_of_values(func(*args, **{**kwargs, "device": _CPU}))
        return func(*args, **kwargs)


def host_form(value: Any) -> Any:
    """The tensor on the CPU that has the values of one on the device; anything else as it is."""
    return value.held if isinstance(value, DeviceTensor) else value


def size_of(tensor: Tensor) -> int:
    """Bytes of distinct elements: an expanded dimension has one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size if stride else 1 for size, stride in sizes) * tensor.element_size()


def _bytes_moved(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> int:
    """What a kernel reads and writes, each element once; of a table that is indexed, the elements taken."""
    name, given = name_of(func), tensors_of((args, kwargs))
    if name in _WRITERS:
        return 2 * sum(size_of(each) for each in given[1:])
    made = {_home(each): each for each in tensors_of(result)}
    written = sum(size_of(each) for each in made.values())
    if name in _GATHERS:
        return 2 * written + sum(size_of(each) for each in given[1:])
    if name.endswith("_") and not name.startswith("copy") and len(given) > 0:
        return sum(size_of(each) for each in given) + size_of(given[0])
    if name == "copy_":
        return size_of(given[0]) + sum(size_of(each) for each in given[1:])
    return sum(size_of(each) for each in given) + written


def _operations(name: str, args: Sequence[Any]) -> float:
    """Arithmetic of a matrix product; other kernels are bound by memory."""
    if name not in _PRODUCTS:
        return 0.0
    left, right = [each for each in args if isinstance(each, Tensor) and each.ndim > 1][-2:]
    return 2.0 * left.numel() * right.numel() / left.shape[-1]


def _home(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether the shape of a result depends on values."""
    is_index = name in ("index", "index_put", "index_put_", "_index_put_impl_")
    return is_index and any(each.dtype in (torch.bool, torch.uint8) for each in tensors_of(args[1]))


def _is_view(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> bool:
    if func._schema.is_mutable:
        return False
    homes = {_home(host_form(each)) for each in tensors_of((args, kwargs))}
    return all(_home(each) in homes for each in tensors_of(result))
