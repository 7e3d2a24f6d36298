"""Capture without a GPU: work that is run again, or recorded as torch's operations and replayed.

A recording has the rules of a graph on a GPU: reads and uploads of the host's would happen at the time of
capture alone, and are refused; what Python decides stays as it was then; results lie where they lay. It
cannot show streams, memory pools, races or speed. Tests capture with it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssd.runtime.capture import Replay, Work

HOST_READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
"""Operations whose result, or its shape, the host has to know."""
UPLOADS = ("lift_fresh", "lift_fresh_copy")
"""Values of Python's that become tensors: copies from the host at the time of capture."""


class CaptureError(RuntimeError):
    """The work depends on the host, so a replay would not do what it does."""


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
    """Where its results go; none where it writes in place."""


@dataclass(frozen=True, slots=True)
class Tape:
    operations: list[_Operation]

    def __call__(self) -> None:
        for each in self.operations:
            made = each.function(*each.args, **each.kwargs)
            if each.results:
                for place, result in zip(each.results, tensors_of(made), strict=True):
                    place.copy_(result)

    @property
    def names(self) -> list[str]:
        return [name_of(each.function) for each in self.operations]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; what is no view goes onto the tape."""

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
            results = () if is_mutable else tuple(tensors_of(made))
            self._tape.operations.append(_Operation(func, args, kwargs, results))
        return made


def refuse_the_host(function: Any, args: Sequence[Any]) -> None:
    """CaptureError where an operation reads or brings a value of the host's."""
    name = name_of(function)
    if name in HOST_READS:
        raise CaptureError(f"{name}: the host reads a value, which a replay would not")
    if name in UPLOADS:
        raise CaptureError(f"{name}: a value of the host's is uploaded, which a replay would not do again")
    if name in ("index", "index_put_", "_index_put_impl_") and any(
        each.dtype in (torch.bool, torch.uint8) for each in tensors_of(args[1])
    ):
        raise CaptureError(f"{name} by a mask: its shape is a value that the host reads")


def name_of(function: Any) -> str:
    name: str = function._schema.name.split("::")[1]
    return name


def _is_view(made: Any, given: Any) -> bool:
    """By its memory: a `reshape` is a view in one case and a copy in another."""
    # Packed weights have no storage to speak of, and no views.
    known = {each.untyped_storage().data_ptr() for each in tensors_of(given) if not each.is_mkldnn}
    return all(each.untyped_storage().data_ptr() in known for each in tensors_of(made))


def tensors_of(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
