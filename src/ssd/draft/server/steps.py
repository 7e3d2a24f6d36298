"""What a step of the draft is given, and what the host learns from it.

`Steps` grows the trees: `HostSteps` (host_steps.py) on arrays, one step at a time, and `DeviceSteps`
(device_steps.py) on a GPU, where a step is launched before the host has read the one before. So the host
never needs a value of the latest step to launch the next one. Knows columns by row of the tables; does not
know how a step is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.messages import Ints
from ssd.draft.server.session import DraftSession, Longs
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import PrefillChunk

Flags = NDArray[np.bool_]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TenantColumns:
    """Tenants' accounts (tenants.py): the tenant of each row, and each tenant's usage and weight."""

    tenant: Longs
    used: Reals
    weight: Reals


@dataclass(frozen=True, slots=True)
class StepInput:
    """What the host decides for a step."""

    live: Flags
    """By row: whether the sequence may grow."""
    steps_left: Longs
    """By row: steps until the sequence's next outcome."""
    usage: TenantColumns | None
    """None: there is only one tenant."""
    chunks: Sequence[PrefillChunk]
    """Tokens of prompts that are read beside the step's rows."""
    num_due: int
    """An estimate of the unread tokens that the step will read."""


@dataclass(frozen=True, slots=True)
class GrowthResult:
    """What a step did. Numbers of rows do not include prompts."""

    fresh: Ints
    """The children that were attached (draft/tree/forest.py)."""
    sequence: Longs
    """The sequence of each selected row; 0: padding."""
    is_read: Flags
    """Which of these rows read a token of the text."""
    run_sequence: Longs
    """The sequence of each row of a run."""
    wanted: Longs
    """By row of the tables: rows that the sequence wanted."""
    num_computed: Longs
    """By row of the tables: tokens of the text that are read now."""

    @property
    def num_rows(self) -> int:
        return int(np.count_nonzero(self.sequence) + np.count_nonzero(self.run_sequence))


class TreeStep(Protocol):
    def collect(self) -> GrowthResult:
        """Waits for the step's end."""
        ...


class Steps(Protocol):
    depth: int
    """Steps that are in flight when the next one is launched."""
    forest: Forest
    """Its tables have every sequence that is open. Reading them waits for all steps."""

    def open(self, session: DraftSession, *, num_computed: int, calibration_part: int) -> None:
        """Writes a session, which has its row, to the tables: a tree that has only a root."""
        ...

    def close(self, session: DraftSession) -> None: ...

    def write_blocks(self, row: int, start: int, blocks: Sequence[int]) -> None:
        """Writes entries of a block table, from `start` on."""
        ...

    def apply(self, count: Longs, tokens: Longs) -> None:
        """Applies outcomes: by row the number of their tokens, and the tokens [rows, most of an outcome]."""
        ...

    def launch(self, given: StepInput) -> TreeStep: ...

    def flush(self) -> None:
        """After this the tables have all that was applied and written."""
        ...
