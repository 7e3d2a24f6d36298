"""Capture without a GPU: runs the work again, or records torch's operations and replays them.

A recording has the rules of a GPU graph: host reads and uploads would happen only during capture, and are
refused; Python's decisions are those of the capture; results are written to the same tensors. It cannot show
streams, memory pools, races or speed. Also used by tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssd.runtime.capture import Replay, Work
from ssd.runtime.gpu_device import Ended

HOST_READS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
"""Operations that make the host wait for a value or a shape."""
UPLOADS = ("lift_fresh", "lift_fresh_copy")
"""Operations that copy Python values to tensors."""


class CaptureError(RuntimeError):
    """The work depends on the host, so a replay would differ."""


class RunAgain:
    """No capture: a replay calls the work."""

    def mark_end(self) -> Ended:
        return Ended()

    def __call__(self, work: Work) -> Replay:
        def replay() -> None:
            work()

        replay()
        return replay


class Recording:
    """Records the operations that torch dispatches; a replay uses the same tensors."""

    def mark_end(self) -> Ended:
        return Ended()

    def __call__(self, work: Work) -> "Tape":
        with Recorder(None):
            work()
        tape = Tape([])
        with Recorder(tape):
            work()
        return tape


@dataclass(frozen=True, slots=True)
class _Operation:
    function: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]
    """The tensors that results are copied to; empty if it writes in place."""


@dataclass(frozen=True, slots=True)
class Tape:
    operations: list[_Operation]

    def __call__(self) -> None:
        for each in self.operations:
            returned = each.function(*each.args, **each.kwargs)
            if each.results:
                for recorded, result in zip(each.results, tensors_of(returned), strict=True):
                    recorded.copy_(result)

    @property
    def names(self) -> list[str]:
        return [name_of(each.function) for each in self.operations]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every operation that is not a view to the tape."""

    def __init__(self, tape: Tape | None) -> None:
        """None: records nothing, for a first call that makes cached objects."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._tape is None:
            return func(*args, **kwargs)
        refuse_the_host(func, args)
        returned = func(*args, **kwargs)
        is_mutable = func._schema.is_mutable
        if is_mutable or not _is_view(returned, (args, kwargs)):
            results = () if is_mutable else tuple(tensors_of(returned))
            self._tape.operations.append(_Operation(func, args, kwargs, results))
        return returned


def refuse_the_host(function: Any, args: Sequence[Any]) -> None:
    """CaptureError if an operation makes the host read or upload a value."""
    name = name_of(function)
    if name in HOST_READS:
        raise CaptureError(f"{name}: the host reads a value, which a replay would not")
    if name in UPLOADS:
        raise CaptureError(f"{name}: the host uploads a value, which a replay would not")
    if name in ("index", "index_put_", "_index_put_impl_") and any(
        each.dtype in (torch.bool, torch.uint8) for each in tensors_of(args[1])
    ):
        raise CaptureError(f"{name} by a mask: the host reads its shape")


def name_of(function: Any) -> str:
    name: str = function._schema.name.split("::")[1]
    return name


def _is_view(returned: Any, given: Any) -> bool:
    """Whether the results share memory with the arguments: a `reshape` may be a view or a copy."""
    # Packed weights have no storage pointer and no views.
    known = {each.untyped_storage().data_ptr() for each in tensors_of(given) if not each.is_mkldnn}
    return all(each.untyped_storage().data_ptr() in known for each in tensors_of(returned))


def tensors_of(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
