"""Tensors as if they were on a device of their own: what the host reads of them is a copy, and is counted."""

from typing import Any

from numpy.typing import NDArray

from ssd.draft.tree.arrays import Array, TorchArrays


class FarArrays(TorchArrays):
    def __init__(self) -> None:
        super().__init__()
        self.num_reads = self.num_loads = 0

    def to_host(self, table: Array) -> NDArray[Any]:
        self.num_reads += 1
        return super().to_host(table).copy()

    def load(self, table: Array, values: NDArray[Any]) -> None:
        self.num_loads += 1
        super().load(table, values)
