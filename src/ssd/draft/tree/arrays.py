"""The few operations that torch and numpy spell differently; all others are written the same way.

A step is written once, for torch tensors and numpy arrays. With tensors each operation has a fixed shape and
none reads a value on the host, so a GPU can capture a step and replay it. On a CPU numpy's calls cost a third
of torch's, and shapes may depend on values (`is_fixed` says which holds).

`Array` is either kind. Tables are changed in place and never replaced: captured steps keep their addresses.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Array = Any


class Arrays(Protocol):
    """Integers are int64, reals float32, exacts float64, and words int32."""

    is_fixed: bool
    """Whether shapes must not depend on values."""

    def integers(self, *size: int, fill: int = 0) -> Array: ...
    def flags(self, *size: int) -> Array: ...
    def reals(self, *size: int, fill: float = 0.0) -> Array: ...
    def exacts(self, *size: int, fill: float = 0.0) -> Array: ...
    def words(self, *size: int) -> Array:
        """int32, as on the wire."""
        ...

    def of(self, values: Sequence[int]) -> Array: ...
    def load(self, table: Array, values: NDArray[Any]) -> None:
        """Copies the host's values into a table of the same shape. Not inside steps."""
        ...

    def to_host(self, table: Array) -> NDArray[Any]:
        """A table's values on the host: a view for numpy, a copy from a device. Not inside steps."""
        ...

    def real(self, values: Array) -> Array: ...
    def exact(self, values: Array) -> Array: ...
    def bits(self, reals: Array) -> Array:
        """The bits of float32 numbers, as int32."""
        ...

    def word(self, values: Array) -> Array: ...
    def whole(self, values: Array) -> Array: ...
    def where(self, condition: Array, yes: Array, no: Array) -> Array: ...
    def smallest(self, values: Array, count: int) -> Array:
        """The `count` smallest of each row, ascending."""
        ...

    def order(self, values: Array) -> Array:
        """Indices that sort the values in ascending order, stably."""
        ...

    def searchsorted(self, ascending: Array, values: Array) -> Array:
        """For each value: how many of `ascending` are smaller."""
        ...

    def joined(self, arrays: Sequence[Array], axis: int) -> Array: ...
    def add_at(self, table: Array, places: Array, values: Array) -> None:
        """Adds values at places of a one-dimensional table. A place may occur more than once."""
        ...

    def at_least(self, values: Array, least: float) -> Array: ...
    def at_most(self, values: Array, most: Any) -> Array: ...
    def log(self, values: Array) -> Array: ...
    def exp(self, values: Array) -> Array: ...


class NumpyArrays:
    is_fixed = False

    def integers(self, *size: int, fill: int = 0) -> Array:
        return np.full(size, fill, np.int64)

    def flags(self, *size: int) -> Array:
        return np.zeros(size, np.bool_)

    def reals(self, *size: int, fill: float = 0.0) -> Array:
        return np.full(size, fill, np.float32)

    def exacts(self, *size: int, fill: float = 0.0) -> Array:
        return np.full(size, fill, np.float64)

    def words(self, *size: int) -> Array:
        return np.zeros(size, np.int32)

    def of(self, values: Sequence[int]) -> Array:
        return np.array(values, np.int64)

    def load(self, table: Array, values: NDArray[Any]) -> None:
        table[:] = values

    def to_host(self, table: Array) -> NDArray[Any]:
        found: NDArray[Any] = table
        return found

    def real(self, values: Array) -> Array:
        return values.astype(np.float32)

    def exact(self, values: Array) -> Array:
        return values.astype(np.float64)

    def bits(self, reals: Array) -> Array:
        return reals.view(np.int32)

    def word(self, values: Array) -> Array:
        return values.astype(np.int32)

    def whole(self, values: Array) -> Array:
        return values.astype(np.int64)

    def where(self, condition: Array, yes: Array, no: Array) -> Array:
        return np.where(condition, yes, no)

    def smallest(self, values: Array, count: int) -> Array:
        if count < values.shape[-1]:
            values = np.partition(values, count - 1, axis=-1)[..., :count]
        return np.sort(values, axis=-1)

    def order(self, values: Array) -> Array:
        return np.argsort(values, kind="stable")

    def searchsorted(self, ascending: Array, values: Array) -> Array:
        return np.searchsorted(ascending, values)

    def joined(self, arrays: Sequence[Array], axis: int) -> Array:
        return np.concatenate(arrays, axis)

    def add_at(self, table: Array, places: Array, values: Array) -> None:
        table += np.bincount(places, values, len(table)).astype(table.dtype)

    def at_least(self, values: Array, least: float) -> Array:
        return np.maximum(values, least)

    def at_most(self, values: Array, most: Any) -> Array:
        return np.minimum(values, most)

    def log(self, values: Array) -> Array:
        return np.log(values)

    def exp(self, values: Array) -> Array:
        return np.exp(values)


class TorchArrays:
    is_fixed = True

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def _full(self, size: Sequence[int], fill: float, dtype: torch.dtype) -> Array:
        return torch.full(size, fill, dtype=dtype, device=self._device)

    def integers(self, *size: int, fill: int = 0) -> Array:
        return self._full(size, fill, torch.int64)

    def flags(self, *size: int) -> Array:
        return self._full(size, 0, torch.bool)

    def reals(self, *size: int, fill: float = 0.0) -> Array:
        return self._full(size, fill, torch.float32)

    def exacts(self, *size: int, fill: float = 0.0) -> Array:
        return self._full(size, fill, torch.float64)

    def words(self, *size: int) -> Array:
        return self._full(size, 0, torch.int32)

    def of(self, values: Sequence[int]) -> Array:
        # Without waiting for what the device computes now.
        return torch.tensor(values, dtype=torch.int64).to(self._device, non_blocking=True)

    def load(self, table: Array, values: NDArray[Any]) -> None:
        table.copy_(torch.from_numpy(values))

    def to_host(self, table: Array) -> NDArray[Any]:
        found: NDArray[Any] = table.numpy(force=True)
        return found

    def real(self, values: Array) -> Array:
        return values.float()

    def exact(self, values: Array) -> Array:
        return values.double()

    def bits(self, reals: Array) -> Array:
        return reals.view(torch.int32)

    def word(self, values: Array) -> Array:
        return values.int()

    def whole(self, values: Array) -> Array:
        return values.long()

    def where(self, condition: Array, yes: Array, no: Array) -> Array:
        return torch.where(condition, yes, no)

    def smallest(self, values: Array, count: int) -> Array:
        if count < values.shape[-1]:
            return values.topk(count, largest=False, sorted=True).values
        return values.sort(-1).values

    def order(self, values: Array) -> Array:
        return torch.argsort(values, stable=True)

    def searchsorted(self, ascending: Array, values: Array) -> Array:
        return torch.searchsorted(ascending, values)

    def joined(self, arrays: Sequence[Array], axis: int) -> Array:
        return torch.cat(list(arrays), axis)

    def add_at(self, table: Array, places: Array, values: Array) -> None:
        table.index_add_(0, places, values.to(table.dtype))

    def at_least(self, values: Array, least: float) -> Array:
        return values.clamp(min=least)

    def at_most(self, values: Array, most: Any) -> Array:
        return values.clamp(max=most)

    def log(self, values: Array) -> Array:
        return values.log()

    def exp(self, values: Array) -> Array:
        return values.exp()
