"""What a step on tensors does, operation by operation: how many, and what a device could not record.

A value read on the host, a shape that depends on values, an upload: each stops a recorded step. Views cost
nothing and are not counted. Storages that are written are noted, so that a table which was replaced rather
than changed is found.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("_local_scalar_dense", "item", "is_nonzero", "equal")
"""The host learns a value, and waits for it."""
SHAPES = ("nonzero", "masked_select", "unique", "repeat_interleave", "bincount")
"""The shape of the result depends on values."""
UPLOADS = ("lift_fresh", "lift_fresh_copy", "_to_copy_from_host")
"""A tensor is made of the host's numbers."""
VIEWS = {
    *("view", "_unsafe_view", "reshape", "slice", "select", "unsqueeze", "squeeze", "expand", "permute"),
    *("transpose", "t", "alias", "as_strided", "detach", "unbind", "split", "_reshape_alias"),
}


@dataclass
class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    counts: Counter[str] = field(default_factory=Counter)
    forbidden: list[str] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    """Storages that an operation changed in place."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.counts[name] += 1
        if name in (*READS, *SHAPES, *UPLOADS):
            self.forbidden.append(name)
        if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
            self.forbidden += [f"{name} by flags" for each in args[1] if _is_flags(each)]
        for argument, described in zip(args, func._schema.arguments, strict=False):
            is_written = described.alias_info is not None and described.alias_info.is_write
            if is_written and isinstance(argument, Tensor):
                self.written.add(argument.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))


def _is_flags(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
