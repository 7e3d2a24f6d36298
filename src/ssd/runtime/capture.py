"""Work that is recorded once and replayed: the same operations on the same memory, without its Python.

Three ways behind one interface: `RunAgain` calls the work each time; `Recording` keeps its operations and
replays them, on any device; `CudaGraphs` has the driver replay kernels, and was never run. A recording has
the rules of a graph on a GPU: reads and uploads of the host's would happen at the time of capture alone, and
are refused; what Python decides stays as it was then; results lie where they lay. It cannot show streams,
memory pools, races or speed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Work = Callable[[], object]
Replay = Callable[[], None]

HOST_READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
"""Operations whose result, or its shape, the host has to know."""
UPLOADS = ("lift_fresh", "lift_fresh_copy")
"""Values of Python's that become tensors: copies from the host at the time of capture."""


class CaptureError(RuntimeError):
    """The work depends on the host, so a replay would not do what it does."""


class Capture(Protocol):
    def __call__(self, work: Work) -> Replay:
        """Runs the work, perhaps more than once, and gives what runs it again.

        So work is captured while all its rows are padding.
        """
        ...


class RunAgain:
    """No capture: the work itself."""

    def __call__(self, work: Work) -> Replay:
        def replay() -> None:
            work()

        replay()
        return replay


class Recording:
    """Operations as torch dispatched them, replayed on the tensors of that time."""

    def __call__(self, work: Work) -> "Tape":
        with _Recorder(None):
            work()
        tape = Tape([])
        with _Recorder(tape):
            work()
        return tape


class CudaGraphs:
    """Never run: no machine of ours has a GPU."""

    def __call__(self, work: Work) -> Replay:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        # What is made at a first call (handles, workspaces, compiled kernels) must not be captured.
        with torch.cuda.stream(aside):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graph.replay()
        replay: Replay = graph.replay
        return replay


@dataclass(frozen=True, slots=True)
class _Operation:
    function: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]
    """Where its results go; none where it writes in place."""


@dataclass(frozen=True, slots=True)
class Tape:
    operations: list[_Operation]

    def __call__(self) -> None:
        for each in self.operations:
            made = each.function(*each.args, **each.kwargs)
            if each.results:
                for place, result in zip(each.results, _tensors(made), strict=True):
                    place.copy_(result)

    @property
    def names(self) -> list[str]:
        return [_name(each.function) for each in self.operations]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, tape: Tape | None) -> None:
        """None: what is made at a first call, and kept, is no part of the work."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._tape is None:
            return func(*args, **kwargs)
        refuse_the_host(func, args)
        made = func(*args, **kwargs)
        is_mutable = func._schema.is_mutable
        if is_mutable or not _is_view(made, (args, kwargs)):
            results = () if is_mutable else tuple(_tensors(made))
            self._tape.operations.append(_Operation(func, args, kwargs, results))
        return made


def refuse_the_host(function: Any, args: Sequence[Any]) -> None:
    """CaptureError where an operation reads or brings a value of the host's."""
    name = _name(function)
    if name in HOST_READS:
        raise CaptureError(f"{name}: the host reads a value, which a replay would not")
    if name in UPLOADS:
        raise CaptureError(f"{name}: a value of the host's is uploaded, which a replay would not do again")
    if name in ("index", "index_put_", "_index_put_impl_") and any(
        each.dtype in (torch.bool, torch.uint8) for each in _tensors(args[1])
    ):
        raise CaptureError(f"{name} by a mask: its shape is a value that the host reads")


def _name(function: Any) -> str:
    name: str = function._schema.name.split("::")[1]
    return name


def _is_view(made: Any, given: Any) -> bool:
    """By its memory: a `reshape` is a view in one case and a copy in another."""
    # Packed weights have no storage to speak of, and no views.
    known = {each.untyped_storage().data_ptr() for each in _tensors(given) if not each.is_mkldnn}
    return all(each.untyped_storage().data_ptr() in known for each in _tensors(made))


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
