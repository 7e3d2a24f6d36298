"""Memory through which host and device exchange a step: one upload before it, one result after it.

A buffer may be rewritten only after the step that copies from it, or into it, has ended. So there is one for
each step in flight, and one for the next. Knows columns; does not know graphs, trees or sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.draft.server.session import Longs
from ssd.draft.server.steps import GrowthResult, TenantColumns
from ssd.draft.tree.forest import ForestTables, fresh_width
from ssd.draft.tree.tables import OutcomeTable, Shape

NEW_BLOCKS = 2
"""Entries of a block table that one upload can add."""


class InputColumns:
    """All that the host writes before a step, in one buffer on each side."""

    def __init__(self, shape: Shape, device: torch.device, *, num_staged: int) -> None:
        """`num_staged`: steps that may be in flight, with the one that is launched."""
        s = shape.sequences + 1
        sizes = {
            "is_live": -(-s // 8),
            **dict.fromkeys(
                ("steps_left", "count", "tenant", "used", "weight", "first_block", "num_blocks"), s
            ),
            "tokens": s * shape.outcome,
            "blocks": s * NEW_BLOCKS,
        }
        ends = np.cumsum(list(sizes.values())).tolist()
        self._host = np.zeros(ends[-1], np.int64)
        self._device = torch.zeros(ends[-1], dtype=torch.long, device=device)
        self._staged = [PinnedBuffer.of(ends[-1], torch.long, device) for _ in range(num_staged)]
        self.has_changes = False
        """Outcomes or blocks wait to be applied."""
        self._is_shared = False
        spans = {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
        mine = {name: self._host[span] for name, span in spans.items()}
        self.live = mine["is_live"].view(np.bool_)[:s]
        self.steps_left, self.count, self.tenant = mine["steps_left"], mine["count"], mine["tenant"]
        self.used, self.weight = mine["used"].view(np.float64), mine["weight"].view(np.float64)
        self.tokens = mine["tokens"].reshape(s, shape.outcome)
        self.first_block, self.num_blocks = mine["first_block"], mine["num_blocks"]
        self.blocks = mine["blocks"].reshape(s, NEW_BLOCKS)
        self.steps_left[:], self.weight[:] = 1, 1.0
        self.upload(None)
        its = {name: self._device[span] for name, span in spans.items()}
        self._columns = its | {
            "is_live": its["is_live"].view(torch.bool)[:s],
            "used": its["used"].view(torch.float64),
            "weight": its["weight"].view(torch.float64),
            "tokens": its["tokens"].view(s, shape.outcome),
            "blocks": its["blocks"].view(s, NEW_BLOCKS),
        }

    def on_device(self, name: str) -> Tensor:
        return self._columns[name]

    def in_tables(self, tables: ForestTables) -> ForestTables:
        """The tables with these columns in place of their own."""
        its = self._columns
        return ForestTables(
            replace(tables.trees, is_live=its["is_live"], steps_left=its["steps_left"]),
            OutcomeTable(its["count"], its["tokens"]),
            replace(tables.usage, tenant=its["tenant"], used=its["used"], weight=its["weight"]),
        )

    def add_outcomes(self, count: Longs, tokens: Longs) -> None:
        self.count[:], self.tokens[:] = count, tokens
        self.has_changes = True

    def add_blocks(self, row: int, start: int, blocks: Sequence[int]) -> None:
        self.first_block[row], self.num_blocks[row] = start, len(blocks)
        self.blocks[row, : len(blocks)] = blocks
        self.has_changes = True

    def set_usage(self, usage: TenantColumns | None) -> None:
        if usage is not None:
            self.tenant[:], self.used[:], self.weight[:] = usage.tenant, usage.used, usage.weight
        elif self._is_shared:
            self.tenant[:], self.used[:], self.weight[:] = 1, 0.0, 1.0
        self._is_shared = usage is not None

    def upload(self, place: int | None) -> None:
        """One copy. `place`: the memory that it is copied from meanwhile; None: waits for its end."""
        if place is None:
            self._device.copy_(torch.from_numpy(self._host))
        else:
            staged = self._staged[place]
            staged.array[:] = self._host
            self._device.copy_(staged.tensor, non_blocking=True)
        if self.has_changes:
            self.count[:], self.num_blocks[:] = 0, 0
            self.has_changes = False


@dataclass(frozen=True, slots=True)
class PinnedBuffer:
    """Pinned memory of the host: a device copies from and to it while the host goes on."""

    tensor: Tensor
    array: NDArray[Any]

    @classmethod
    def of(cls, size: int, dtype: torch.dtype, device: torch.device) -> "PinnedBuffer":
        tensor = torch.zeros(size, dtype=dtype, pin_memory=device.type != "cpu")
        return cls(tensor, tensor.numpy())

    def leading(self, size: int) -> "PinnedBuffer":
        return PinnedBuffer(self.tensor[:size], self.array[:size])


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """Where the parts of a step's result begin and end."""

    width: int
    """Integers of a row of `fresh`."""
    sequence: slice
    is_read: slice
    run_sequence: slice
    wanted: slice
    num_computed: slice

    @classmethod
    def of(cls, shape: Shape) -> "ResultLayout":
        width, own, runs, sequences = fresh_width(shape), shape.num_rows, shape.lookup, shape.sequences + 1
        ends = np.cumsum(((own + runs) * width, own, own, runs, sequences, sequences)).tolist()
        return cls(width, *(slice(*each) for each in pairwise(ends)))

    @property
    def size(self) -> int:
        return int(self.num_computed.stop)

    def read(self, result: NDArray[np.int32]) -> GrowthResult:
        """Copies: the memory is a later step's."""
        fresh, long = result[: self.sequence.start].copy(), result.astype(np.int64)
        return GrowthResult(
            fresh.reshape(-1, self.width),
            long[self.sequence],
            long[self.is_read] != 0,
            long[self.run_sequence],
            long[self.wanted],
            long[self.num_computed],
        )
