"""What a step takes to heed tenants: whose turn it is, told to the forest; and who had what, counted.

Between the accounts (tenants.py), which know no tables, and the tables, which know no names.
"""

from collections.abc import Sequence

import numpy as np

from ssd.draft.forest.forest import Forest
from ssd.draft.forest.given import Run
from ssd.draft.forest.ledger import Longs
from ssd.draft.forest.tenants import Tenants


class TurnTaking:
    def __init__(self, forest: Forest, tenants: Tenants) -> None:
        self._forest, self._tenants = forest, tenants

    def load(self) -> None:
        """Before rows are selected. One tenant alone needs no turns."""
        forest, tenants = self._forest, self._tenants
        forest.is_shared = forest.xp.is_fixed or tenants.are_several
        if forest.is_shared:
            forest.xp.load(forest.turns.tenant, tenants.of_row)
            forest.xp.load(forest.turns.used, tenants.used)
            forest.xp.load(forest.turns.weight, tenants.weight)

    def settle(
        self, runs: Sequence[Run], readings: Sequence[tuple[int, int]], waiting: Sequence[int]
    ) -> None:
        """Before rows are attached. Whatever is computed for a tenant counts: roots, nodes, runs and prompts.

        `readings`: rows of the tables whose prompts are read, and how much of them; `waiting`: those that
        have more to read.
        """
        forest, size = self._forest, self._forest.shape.sequences + 1
        sequence = forest.xp.told(forest.rows.sequence)
        own = forest.shape.num_rows if forest.xp.is_fixed else len(sequence) - len(forest.runs.owner)
        chosen = np.bincount(sequence[:own], minlength=size)
        had = chosen.copy()
        for run in runs:
            had[sequence[run.owner]] += len(run.tokens)
        for row, count in readings:
            had[row] += count
        self._tenants.count(had)
        self._tenants.settle(had, self._wanted(had - chosen, waiting) if forest.is_shared else None)
        if forest.is_shared:
            is_read = forest.xp.told(forest.rows.is_read)[:own]
            self._tenants.note_roots(self._due(), np.bincount(sequence[:own], is_read, size))

    def _wanted(self, beside: Longs, waiting: Sequence[int]) -> Longs:
        wanted: Longs = self._forest.xp.told(self._forest.turns.wanted) + beside
        np.add.at(wanted, list(waiting), 1)
        return wanted

    def _due(self) -> Longs:
        """Of each row of the tables: tokens of its text that a step may read."""
        tables, told = self._forest.tables, self._forest.xp.told
        behind: Longs = (told(tables.length) - told(tables.num_read)) * told(tables.is_live)
        return behind
