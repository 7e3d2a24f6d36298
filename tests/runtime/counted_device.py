"""A stand-in for a device: counts what a program asks of it, and what of that makes the host wait.

While a `CountedDevice` is entered, tensors made on `DEVICE` are `DeviceTensor`s: their values are on the CPU,
but every operation on them is seen first. Tensors on the CPU stay what they are, so uploads, downloads and
reads are told apart from work on the host. Knows nothing of streams, kernels' order or time.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ssd.selftest.recording import HOST_READS, name_of, tensors_of

DEVICE = torch.device("meta")
"""Any type that torch knows and does not initialise: every operation on it is answered here."""
_NO_LAUNCH = ("empty", "empty_like", "empty_strided", "new_empty")
_COPIES = ("_to_copy", "copy_")


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

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{name_of(func)} on a tensor of the device, outside of it")


class CountedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forget()

    def forget(self) -> None:
        """Counts from here on."""
        self.launches = list[str]()
        """Kernels, by name; copies between host and device are none."""
        self.uploads = list[str]()
        self.downloads = list[str]()
        self.waits = list[str]()
        """What made the host wait for the device. Some of these are copies too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(self._seen, (tuple(args), kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, DeviceTensor)]
        is_made_here = kwargs.get("device") == DEVICE
        if not given and not is_made_here:
            return func(*args, **kwargs)
        known = {id(each.held): each for each in given}
        inner_args, inner = tree_map(host_form, (tuple(args), kwargs))
        if is_made_here:
            inner["device"] = torch.device("cpu")
        result = func(*inner_args, **inner)
        to_host = kwargs.get("device") is not None and not is_made_here
        is_download = to_host or (name_of(func) == "copy_" and not isinstance(args[0], DeviceTensor))
        self._note(func, args, kwargs, result, is_download=is_download)
        if is_download:
            return result.clone() if to_host else result
        return tree_map(lambda each: _wrapped(each, known), result)

    def _seen(self, value: Any) -> Any:
        """torch.tensor([…], device=…) uploads and waits, unseen; torch keeps no values for such a device."""
        if not isinstance(value, Tensor) or isinstance(value, DeviceTensor) or value.device != DEVICE:
            return value
        self.uploads.append("tensor")
        self.waits.append("tensor")
        return DeviceTensor(torch.zeros(value.shape, dtype=value.dtype))

    def _note(self, func: Any, args: Sequence[Any], kwargs: Any, result: Any, *, is_download: bool) -> None:
        name = name_of(func)
        on_host = [
            each for each in tensors_of((args, kwargs)) if not isinstance(each, DeviceTensor) and each.ndim
        ]
        is_non_blocking = kwargs.get("non_blocking", name == "copy_" and len(args) > 2 and args[2])
        if name in HOST_READS or _is_by_mask(name, args):
            self.waits.append(name)
        elif name in _COPIES and (is_download or on_host):
            (self.downloads if is_download else self.uploads).append(name)
            if not is_non_blocking:
                self.waits.append(name)
            return
        elif on_host:
            # For example an index on the host: torch uploads it, and waits.
            self.uploads.append(name)
            self.waits.append(name)
        if name not in _NO_LAUNCH and not _is_view(func, args, kwargs, result):
            self.launches.append(name)


def host_form(value: Any) -> Any:
    """The tensor on the CPU that has the values of one on the device; anything else as it is."""
    return value.held if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any, known: dict[int, DeviceTensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    return known[id(value)] if id(value) in known else DeviceTensor(value)


def _is_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether the shape of a result depends on values."""
    is_index = name in ("index", "index_put", "index_put_", "_index_put_impl_")
    return is_index and any(each.dtype in (torch.bool, torch.uint8) for each in tensors_of(args[1]))


def _is_view(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> bool:
    if func._schema.is_mutable:
        return False
    homes = {host_form(each).untyped_storage().data_ptr() for each in tensors_of((args, kwargs))}
    return all(each.untyped_storage().data_ptr() in homes for each in tensors_of(result))
